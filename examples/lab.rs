//! Prints hit rates: `lab [ratio=3] [policies=a,b] [budgets=0.005,...] [parts=0/2] TRACE...`
use std::path::Path;

use hybrid_pages::replay::{Budget, ReadOptions, Trace, replay};

fn main() {
    let (mut ratio, mut policies, mut budgets, mut part) = (
        3,
        vec!["reuse".to_owned()],
        vec![0.005, 0.01, 0.02, 0.05],
        (0, 1),
    );
    let mut paths = Vec::new();
    for word in std::env::args().skip(1) {
        match word.split_once('=') {
            Some(("ratio", v)) => ratio = v.parse().unwrap(),
            Some(("policies", v)) => policies = v.split(',').map(str::to_owned).collect(),
            Some(("budgets", v)) => budgets = v.split(',').map(|b| b.parse().unwrap()).collect(),
            Some(("part", v)) => {
                part = v
                    .split_once('/')
                    .map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()))
                    .unwrap()
            }
            _ => paths.push(word),
        }
    }
    let options = ReadOptions {
        block_tokens: 512,
        skip_bad: false,
    };
    let traces: Vec<Trace> = paths
        .iter()
        .map(|p| Trace::open(Path::new(p), options).unwrap())
        .map(|t| {
            let n = t.requests();
            t.part(n * part.0 / part.1..n * (part.0 + 1) / part.1)
        })
        .collect();
    let budgets: Vec<_> = budgets.into_iter().map(Budget::Fraction).collect();
    let rows = replay(&traces, &policies, &budgets, ratio, &|_| ()).unwrap();
    for rows in rows.chunks(budgets.len()) {
        print!(
            "{:20} R{} {:13}",
            Path::new(&paths[rows[0].trace])
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .chars()
                .take(20)
                .collect::<String>(),
            ratio,
            rows[0].policy
        );
        for row in rows {
            print!(" {:.4}", row.hit_rate());
        }
        println!(
            "  us {:.1} B/unit {:.0} w {} states {:.2}",
            rows.iter().map(|r| r.policy_us_per_request).sum::<f64>() / rows.len() as f64,
            rows.last().unwrap().metadata_bytes as f64 / rows.last().unwrap().budget_units as f64,
            rows[0].written_units,
            rows[0].state_share
        );
    }
}
