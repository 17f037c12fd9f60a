//! Runs of requests over an engine that is told, step by step, what its request and its tables are.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::convert::Infallible;

use hybrid_pages_vllm::runs::{
    CheckpointMode, HandOver, ProvenState, RequestView, Run, RunRules, StateBlocks, StateGroup,
    StorePlan, Tail, Tails,
};

const N: usize = 8;

/// A request whose tables hold, in column `c` of table `t`, block `100 t + c + 1`, unless that was freed.
#[derive(Default)]
struct Engine {
    prompt: usize,
    tokens: usize,
    computed: usize,
    in_flight: usize,
    /// StateBlocks that are gone from the tables.
    freed: BTreeSet<u32>,
    /// Blocks that carry the hash of so many tokens.
    carry: BTreeSet<(u32, usize)>,
    /// Columns that were looked at.
    looked: RefCell<Vec<usize>>,
}

impl RequestView for Engine {
    type Error = Infallible;

    fn prompt_tokens(&self) -> Result<usize, Infallible> {
        Ok(self.prompt)
    }

    fn tokens(&self) -> Result<usize, Infallible> {
        Ok(self.tokens)
    }

    fn computed(&self) -> Result<usize, Infallible> {
        Ok(self.computed)
    }

    fn processed(&self) -> Result<usize, Infallible> {
        Ok(self.computed - self.in_flight)
    }

    fn keys(&self) -> Result<usize, Infallible> {
        Ok(self.tokens / N)
    }

    fn block(&self, table: usize, column: usize) -> Result<u32, Infallible> {
        self.looked.borrow_mut().push(column);
        let block = (100 * table + column + 1) as u32;
        Ok(if self.freed.contains(&block) {
            0
        } else {
            block
        })
    }

    fn carries(&self, _: usize, block: u32, tokens: usize) -> Result<bool, Infallible> {
        Ok(self.carry.contains(&(block, tokens)))
    }
}

fn rules(mode: CheckpointMode) -> RunRules {
    let group = |table| StateGroup {
        table,
        per_block: 1,
    };
    RunRules {
        block_tokens: N,
        groups: vec![group(1), group(2)],
        exports_states: false,
        drops_last_block: false,
        drafts: false,
        narrow: false,
        mode,
        tails: Tails::Never,
    }
}

fn drafting() -> RunRules {
    RunRules {
        drafts: true,
        ..rules(CheckpointMode::All)
    }
}

fn state(boundary: usize, blocks: [u32; 2]) -> ProvenState {
    ProvenState {
        boundary,
        blocks: StateBlocks::from_slice(&blocks),
    }
}

fn own(boundary: usize) -> ProvenState {
    let column = boundary as u32;
    state(boundary, [100 + column, 200 + column])
}

fn step(run: &mut Run, rules: &RunRules, engine: &Engine, end: usize) -> Option<StorePlan> {
    let start = engine.computed;
    let Ok(plan) = run.step(rules, (start, end), &[], engine);
    plan
}

/// Steps that end at these tokens, and what they complete.
fn steps(
    run: &mut Run,
    rules: &RunRules,
    engine: &mut Engine,
    ends: &[usize],
) -> Vec<Option<StorePlan>> {
    let plan = |&end: &usize| {
        let plan = step(run, rules, engine, end);
        engine.computed = end;
        if let Some(plan) = &plan {
            run.offered = run.offered.max(plan.reach);
        }
        plan
    };
    ends.iter().map(plan).collect()
}

fn prompt(tokens: usize) -> Engine {
    Engine {
        prompt: tokens,
        tokens,
        ..Engine::default()
    }
}

#[test]
fn a_state_is_taken_where_a_step_ended_and_nowhere_else() {
    let mut engine = prompt(5 * N + 3);
    let found = steps(
        &mut Run::default(),
        &rules(CheckpointMode::All),
        &mut engine,
        &[2 * N, 4 * N + 1, 5 * N],
    );
    let plan = |reach, states: &[ProvenState]| {
        Some(StorePlan {
            reach,
            states: states.to_vec(),
            tail: None,
        })
    };
    assert_eq!(
        found,
        [plan(2, &[own(2)]), plan(4, &[]), plan(5, &[own(5)])]
    );
}

#[test]
fn a_decode_step_inside_a_block_looks_at_nothing() {
    let (mut run, rules) = (Run::default(), rules(CheckpointMode::All));
    let mut engine = prompt(2 * N + 1);
    steps(&mut run, &rules, &mut engine, &[2 * N + 1]);
    engine.looked.borrow_mut().clear();
    for end in 2 * N + 2..3 * N {
        engine.tokens = end;
        assert_eq!(steps(&mut run, &rules, &mut engine, &[end]), [None]);
    }
    assert!(engine.looked.borrow().is_empty());
}

/// A prompt and an answer of two blocks and a token, decoded one by one; what of it is left alone is not planned.
fn answer(longer: usize) -> (usize, Vec<usize>) {
    let (mut run, rules) = (Run::default(), rules(CheckpointMode::All));
    let mut engine = prompt(N + 2);
    steps(&mut run, &rules, &mut engine, &[N + 2]);
    let (mut planned, mut states) = (0, Vec::new());
    for end in N + 3..=3 * N + 2 {
        engine.tokens = end;
        if run.quiet_until > 0 && run.quiet_until.is_multiple_of(N) {
            run.quiet_until += longer;
        }
        if run.passes(end - 1, end) {
            engine.computed = end;
        } else {
            planned += 1;
            let found = steps(&mut run, &rules, &mut engine, &[end]);
            let found = found.into_iter().flatten().flat_map(|plan| plan.states);
            states.extend(found.map(|state| state.boundary));
        }
        assert_eq!(run.position, Some(end));
    }
    (planned, states)
}

#[test]
fn steps_that_complete_nothing_are_known_before() {
    let (planned, states) = answer(0);
    assert_eq!(states, [2, 3]);
    assert!(planned <= 6, "{planned} of {} steps", 2 * N);
    let (_, states) = answer(1);
    assert_eq!(
        states, [0; 0],
        "left alone for a token longer, boundaries are passed over"
    );
}

#[test]
fn a_step_that_does_not_just_go_on_is_looked_at() {
    let (mut run, rules) = (Run::default(), rules(CheckpointMode::All));
    let mut engine = prompt(N + 2);
    steps(&mut run, &rules, &mut engine, &[N + 2]);
    engine.tokens = N + 3;
    steps(&mut run, &rules, &mut engine, &[N + 3]);
    assert_eq!(run.quiet_until, 2 * N);
    assert!(!run.passes(N + 2, N + 4), "tokens were taken back");
    assert!(!run.passes(N + 3, 2 * N), "it completes a block");
    run.take_back(1);
    assert!(!run.passes(N + 3, N + 4), "what comes now is other");

    let (mut run, mut engine) = (Run::default(), prompt(N + 2));
    steps(&mut run, &rules, &mut engine, &[N + 2]);
    engine.tokens = N + 3;
    steps(&mut run, &rules, &mut engine, &[N + 3]);
    run.want([3]);
    assert!(
        !run.passes(N + 3, N + 4),
        "pages up to there may be worth storing now"
    );
    let mut run = Run::default();
    assert!(!run.passes(0, 1), "it has not begun");
}

#[test]
fn a_boundary_without_a_key_is_taken_when_it_has_one_unless_its_blocks_are_gone() {
    for freed in [false, true] {
        let (mut run, rules) = (Run::default(), rules(CheckpointMode::All));
        let mut engine = prompt(2 * N);
        engine.tokens = 2 * N - 1; // The token that fills the block is not known yet.
        steps(&mut run, &rules, &mut engine, &[2 * N]);
        engine.tokens = 2 * N + 1;
        if freed {
            engine.freed.insert(102);
        }
        let plan = step(&mut run, &rules, &engine, 2 * N + 1);
        let states = plan.map(|plan| plan.states).unwrap_or_default();
        let expected = if freed { vec![] } else { vec![own(2)] };
        assert_eq!(states, expected);
    }
}

#[test]
fn what_is_handed_over_counts_only_under_its_hash_and_where_a_step_may_export_it() {
    let mut rules = rules(CheckpointMode::All);
    rules.exports_states = true;
    let offer = |table, block, tokens| HandOver {
        table,
        block,
        tokens,
    };
    let offers = [offer(1, 7, 2 * N), offer(2, 8, 2 * N), offer(3, 9, 2 * N)];
    let find = |carry: &[(u32, usize)], end: usize, rules: &RunRules| {
        let engine = Engine {
            carry: carry.iter().copied().collect(),
            ..prompt(4 * N)
        };
        let Ok(plan) = Run::default().step(rules, (0, end), &offers, &engine);
        plan.expect("there were offers").states
    };
    let both = [(7, 2 * N), (8, 2 * N)];
    assert_eq!(find(&both, 2 * N + 3, &rules), [state(2, [7, 8])]);
    assert_eq!(find(&both[..1], 2 * N + 3, &rules), [state(2, [7, 0])]);
    assert_eq!(find(&[(7, N), (8, 3 * N)], 2 * N + 3, &rules), []);
    assert_eq!(find(&both, 3 * N + 1, &rules), [], "too far behind");
    let dropping = RunRules {
        drops_last_block: true,
        ..rules.clone()
    };
    assert_eq!(find(&both, 3 * N + 1, &dropping), [state(2, [7, 8])]);
    rules.exports_states = false;
    assert_eq!(find(&both, 2 * N + 3, &rules), []);
    // Where the step ended itself, another block proves nothing.
    assert_eq!(find(&both, 2 * N, &rules), [state(2, [0, 0])]);
}

#[test]
fn an_answer_gets_the_checkpoints_that_the_engine_keeps_itself() {
    let (mut run, rules) = (Run::default(), rules(CheckpointMode::Adaptive));
    let mut engine = prompt(2 * N);
    run.want([1]);
    let kept = [(102, 2), (202, 2), (103, 3), (203, 3), (104, 4)];
    engine.carry = kept.map(|(block, boundary)| (block, boundary * N)).into();
    engine.tokens = 4 * N + 1;
    let found = steps(&mut run, &rules, &mut engine, &[N, 2 * N, 3 * N, 4 * N]);
    let states: Vec<_> = found
        .into_iter()
        .flatten()
        .flat_map(|plan| plan.states)
        .collect();
    assert_eq!(states, [own(1), own(3)]);
    assert_eq!(run.wanted().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(run.offered, 3, "pages up to the last checkpoint");
}

/// What an answer of three blocks behind a prompt of two leaves: the engine keeps the state of its first boundary.
fn left_of_an_answer(mode: CheckpointMode) -> (Run, Vec<usize>) {
    let mut run = Run::default();
    let mut engine = prompt(2 * N);
    engine.carry = [(103, 3 * N), (203, 3 * N)].into();
    engine.tokens = 5 * N + 1;
    let ends = [N, 2 * N, 3 * N, 4 * N, 5 * N];
    steps(&mut run, &rules(mode), &mut engine, &ends);
    let left = run.passed_over().collect();
    (run, left)
}

#[test]
fn states_of_an_answer_that_are_not_kept_are_known() {
    for (mode, left) in [
        (CheckpointMode::Adaptive, vec![4, 5]),
        (CheckpointMode::Align, vec![4, 5]),
        (CheckpointMode::All, vec![]),
        (CheckpointMode::None, vec![]),
    ] {
        assert_eq!(left_of_an_answer(mode).1, left, "{mode:?}");
    }
}

#[test]
fn a_state_that_was_not_whole_is_not_one_that_was_passed_over() {
    let (mut run, mut engine) = (Run::default(), prompt(2 * N));
    engine.freed = [203].into();
    engine.tokens = 4 * N + 1;
    let ends = [2 * N, 3 * N, 4 * N];
    steps(
        &mut run,
        &rules(CheckpointMode::Adaptive),
        &mut engine,
        &ends,
    );
    assert_eq!(run.passed_over().collect::<Vec<_>>(), [4]);
}

#[test]
fn what_was_passed_over_outlives_a_preemption_and_not_other_tokens() {
    let (mut run, _) = left_of_an_answer(CheckpointMode::Adaptive);
    run.restart();
    assert_eq!(run.passed_over().collect::<Vec<_>>(), [4, 5]);
    run.want([5]);
    assert_eq!(run.passed_over().collect::<Vec<_>>(), [4]);
    run.take_back(4);
    assert_eq!(run.passed_over().collect::<Vec<_>>(), [4], "it ends there");
    run.take_back(3);
    assert_eq!(run.passed_over().count(), 0);
}

#[test]
fn drafts_fill_nothing() {
    let (mut run, rules) = (Run::default(), drafting());
    let mut engine = prompt(N);
    engine.tokens = 2 * N - 2;
    steps(&mut run, &rules, &mut engine, &[2 * N - 3]);
    engine.in_flight = 6;
    // Two known tokens and four drafts.
    let plan = step(&mut run, &rules, &engine, 2 * N + 1);
    let plan = plan.expect("a boundary may be reached");
    assert_eq!((plan.reach, plan.states), (1, vec![]));
    assert_eq!(run.position, Some(2 * N - 2));
}

#[test]
fn a_state_is_taken_when_accepted_tokens_reach_its_boundary() {
    let (mut run, rules) = (Run::default(), drafting());
    let mut engine = prompt(N);
    engine.tokens = N + 1;
    steps(&mut run, &rules, &mut engine, &[N]);
    for (accepted, expected) in [(2 * N - 1, vec![]), (2 * N, vec![own(2)]), (2 * N, vec![])] {
        let end = engine.computed + 4;
        step(&mut run, &rules, &engine, end);
        (engine.computed, engine.tokens) = (accepted, accepted + 1);
        let Ok(plan) = run.report(&rules, &engine);
        let states = plan.map(|plan| plan.states).unwrap_or_default();
        assert_eq!(states, expected);
    }
}

#[test]
fn columns_that_a_prefill_has_passed_are_not_taken() {
    let (mut run, rules) = (Run::default(), drafting());
    let mut engine = prompt(3 * N + 3);
    steps(&mut run, &rules, &mut engine, &[N + 2, 3 * N + 3]);
    engine.tokens += 1;
    let Ok(plan) = run.report(&rules, &engine);
    assert_eq!(plan, None);
    // What it would take if it thought that the prompt was an answer.
    (run.prefilled, run.reports_from) = (1, 0);
    let Ok(plan) = run.report(&rules, &engine);
    assert_eq!(plan.expect("a boundary").states, [own(3)]);
}

#[test]
fn what_was_taken_back_or_preempted_proves_nothing() {
    for (rules, computed) in [(rules(CheckpointMode::All), 2 * N - 1), (drafting(), N)] {
        let mut run = Run::default();
        let mut engine = prompt(2 * N);
        steps(&mut run, &rules, &mut engine, &[2 * N]);
        engine.computed = computed;
        let Ok(plan) = run.finish(&rules, &engine);
        assert_eq!(plan, None);
    }
}

// ---- tails

fn with_tails(tails: Tails) -> RunRules {
    RunRules {
        tails,
        ..rules(CheckpointMode::Adaptive)
    }
}

fn tail(tokens: usize) -> Option<Tail> {
    let column = tokens.div_ceil(N) as u32;
    Some(Tail::State {
        tokens,
        blocks: StateBlocks::from_slice(&[100 + column, 200 + column]),
        overwritten: false,
    })
}

/// A request of a prompt and an answer decoded token by token, of which so many tokens are computed and known.
fn ended(run: &mut Run, rules: &RunRules, computed: usize, known: usize) -> Option<StorePlan> {
    let mut engine = prompt(N + 3);
    engine.tokens = known;
    let ends: Vec<_> = (N + 3..=computed).collect();
    steps(run, rules, &mut engine, &ends);
    let Ok(plan) = run.finish(rules, &engine);
    plan
}

#[test]
fn a_request_that_has_ended_leaves_its_running_state() {
    for tails in [Tails::Copied, Tails::InSteps] {
        for computed in [N + 3, N + 4, 2 * N - 1, 2 * N + 1, 4 * N + 5] {
            for known in [computed, computed + 1] {
                let plan = ended(&mut Run::default(), &with_tails(tails), computed, known);
                let plan = plan.expect("the end");
                assert_eq!(plan.tail, tail(computed));
                assert_eq!(plan.reach, 0, "its pages depend on whether it is stored");
                assert_eq!(plan.states, []);
            }
        }
    }
}

#[test]
fn a_state_that_includes_a_token_which_nobody_knows_is_not_stored() {
    let rules = with_tails(Tails::Copied);
    let plan = ended(&mut Run::default(), &rules, 2 * N + 3, 2 * N + 2).expect("why not");
    assert_eq!(plan.tail, Some(Tail::Skipped("unknown_token")));
    assert_eq!(plan.reach, 0, "adaptive: no checkpoint is worth pages");
    let plan = ended(&mut Run::default(), &rules, 3 * N, 3 * N - 1);
    let plan = plan.expect("its blocks prove something");
    assert_eq!((plan.tail, plan.states), (None, vec![]));
}

#[test]
fn an_end_on_a_boundary_is_a_checkpoint_of_a_whole_block() {
    for known in [3 * N, 3 * N + 1] {
        let plan = ended(
            &mut Run::default(),
            &with_tails(Tails::Copied),
            3 * N,
            known,
        );
        let plan = plan.expect("the end");
        assert_eq!(
            (plan.reach, plan.states, plan.tail),
            (3, vec![own(3)], None)
        );
    }
    // It was stored when the step ended there.
    let mut run = Run::default();
    run.want([3]);
    let plan = ended(&mut run, &with_tails(Tails::Copied), 3 * N, 3 * N + 1);
    assert_eq!(plan.expect("nothing new").states, []);
    let plan = ended(
        &mut Run::default(),
        &rules(CheckpointMode::Adaptive),
        3 * N,
        3 * N + 1,
    );
    assert_eq!(plan.expect("without tails").states, []);
}

#[test]
fn a_boundary_whose_key_came_late_is_stored_once_at_the_end() {
    let (mut run, rules) = (Run::default(), with_tails(Tails::Copied));
    run.want([2]);
    let mut engine = prompt(N + 3);
    steps(&mut run, &rules, &mut engine, &[N + 3]);
    engine.tokens = 2 * N - 1;
    steps(&mut run, &rules, &mut engine, &[2 * N]);
    engine.tokens = 2 * N;
    let Ok(plan) = run.finish(&rules, &engine);
    assert_eq!(plan.expect("the end").states, [own(2)]);
}

#[test]
fn a_freed_state_is_no_tail() {
    let mut engine = prompt(2 * N + 3);
    engine.freed = [203].into();
    let (mut run, rules) = (Run::default(), with_tails(Tails::Copied));
    steps(&mut run, &rules, &mut engine, &[2 * N + 3]);
    let Ok(plan) = run.finish(&rules, &engine);
    assert_eq!(
        plan.expect("why not").tail,
        Some(Tail::Skipped("partial_state"))
    );
}

#[test]
fn a_group_with_smaller_blocks_has_the_state_in_the_column_of_the_last_token() {
    let mut rules = with_tails(Tails::Copied);
    rules.groups[1].per_block = 4;
    for (computed, column) in [
        (1, 1),
        (2, 1),
        (3, 2),
        (N - 1, 4),
        (N + 1, 5),
        (2 * N - 2, 7),
    ] {
        let mut engine = prompt(computed);
        let mut run = Run::default();
        steps(&mut run, &rules, &mut engine, &[computed]);
        let Ok(plan) = run.finish(&rules, &engine);
        let Some(Tail::State { blocks, .. }) = plan.expect("the end").tail else {
            panic!("expected a tail");
        };
        assert_eq!(blocks[1], 200 + column, "{computed}");
    }
}

#[test]
fn a_step_leaves_a_tail_only_where_one_is_wanted() {
    let found = |tails, wanted: &[usize]| {
        let (mut run, rules) = (Run::default(), with_tails(tails));
        run.want_tails(wanted.iter().copied());
        let mut engine = prompt(3 * N + 3);
        let plans = steps(&mut run, &rules, &mut engine, &[N + 1, 2 * N, 3 * N + 3]);
        let tails = plans
            .into_iter()
            .map(|plan| plan.and_then(|plan| plan.tail));
        tails.collect::<Vec<_>>()
    };
    let wanted = [N + 1, 2 * N, 3 * N + 3];
    for tails in [Tails::Never, Tails::HandedOver] {
        assert_eq!(found(tails, &wanted), [None, None, None]);
    }
    for tails in [Tails::InSteps, Tails::Copied] {
        let tail = |tokens| overwritten(tail(tokens), tails == Tails::Copied);
        assert_eq!(found(tails, &[]), [None, None, None]);
        assert_eq!(
            found(tails, &wanted),
            [tail(N + 1), None, tail(3 * N + 3)],
            "where stores outlast a step, the next one overwrites its state"
        );
        assert_eq!(found(tails, &[N + 2]), [None, None, None]);
    }
}

fn overwritten(tail: Option<Tail>, by_the_next_step: bool) -> Option<Tail> {
    let Some(Tail::State { tokens, blocks, .. }) = tail else {
        return tail;
    };
    Some(Tail::State {
        tokens,
        blocks,
        overwritten: by_the_next_step,
    })
}

#[test]
fn a_tail_that_was_refused_is_offered_again_at_the_end() {
    let (mut run, rules) = (Run::default(), with_tails(Tails::Copied));
    run.want_tails([N + 3]);
    let mut engine = prompt(N + 3);
    steps(&mut run, &rules, &mut engine, &[N + 3]);
    let Ok(plan) = run.finish(&rules, &engine);
    assert_eq!(plan.and_then(|plan| plan.tail), None);
    run.refuse_tail(N + 3);
    let Ok(plan) = run.finish(&rules, &engine);
    assert_eq!(plan.and_then(|plan| plan.tail), tail(N + 3));
}

#[test]
fn a_state_that_the_engine_hands_over_inside_a_block_is_a_tail() {
    let offer = |table, block, tokens| HandOver {
        table,
        block,
        tokens,
    };
    let offers = [offer(1, 7, N + 2), offer(2, 8, N + 2), offer(1, 9, 2 * N)];
    let found = |tails, wanted: &[usize], step, carry: &[(u32, usize)], exports_states| {
        let (mut run, mut engine) = (Run::default(), prompt(3 * N));
        let rules = RunRules {
            exports_states,
            ..with_tails(tails)
        };
        run.want_tails(wanted.iter().copied());
        engine.carry = carry.iter().copied().collect();
        let Ok(tail) = run.tail_handed_over(&rules, step, &offers, &engine);
        let Ok(again) = run.tail_handed_over(&rules, step, &offers, &engine);
        assert_eq!(again, None, "it is stored once");
        tail
    };
    let (at, both) = (N + 2, [(7, N + 2), (8, N + 2)]);
    let there = Some(Tail::State {
        tokens: at,
        blocks: StateBlocks::from_slice(&[7, 8]),
        overwritten: false,
    });
    for tails in [Tails::HandedOver, Tails::InSteps, Tails::Copied] {
        assert_eq!(found(tails, &[at], (at, 2 * N), &both, false), there);
        assert_eq!(
            found(tails, &[at], (at, at), &both, false),
            there,
            "no step"
        );
        assert_eq!(
            found(tails, &[at], (N, 2 * N + 1), &both, true),
            there,
            "exported"
        );
    }
    let tails = Tails::HandedOver;
    assert_eq!(found(Tails::Never, &[at], (at, 2 * N), &both, false), None);
    assert_eq!(found(tails, &[2 * N, 9], (at, 2 * N), &both, false), None);
    assert_eq!(
        found(tails, &[at], (N, 2 * N), &both, false),
        None,
        "no step ended there"
    );
    assert_eq!(found(tails, &[at], (at + 1, 2 * N), &both, true), None);
    let partial = Some(Tail::Skipped("partial_state"));
    assert_eq!(found(tails, &[at], (at, 2 * N), &both[..1], false), partial);
}

#[test]
fn a_request_that_ends_where_its_step_left_a_tail_offers_it_once() {
    let rules = with_tails(Tails::InSteps);
    for more in [0, 1] {
        let mut run = Run::default();
        run.want_tails([N + 3]);
        let plan = ended(&mut run, &rules, N + 3 + more, N + 4).expect("its pages");
        let expected = if more == 0 { None } else { tail(N + 4) };
        assert_eq!(plan.tail, expected);
    }
}

#[test]
fn what_was_preempted_or_taken_back_leaves_no_tail() {
    let rules = with_tails(Tails::Copied);
    let (mut run, mut engine) = (Run::default(), prompt(N + 3));
    steps(&mut run, &rules, &mut engine, &[N + 3]);
    engine.computed = 0;
    let Ok(plan) = run.finish(&rules, &engine);
    assert_eq!(plan, None);
    run.restart();
    let Ok(plan) = run.finish(&rules, &engine);
    assert_eq!(plan, None, "it has not begun again");
}

#[test]
fn tails_that_are_wanted_outlive_a_preemption() {
    let (mut run, rules) = (Run::default(), with_tails(Tails::InSteps));
    run.want_tails([N + 1]);
    let mut engine = prompt(3 * N);
    steps(&mut run, &rules, &mut engine, &[N]);
    run.restart();
    engine.computed = 0;
    let plans = steps(&mut run, &rules, &mut engine, &[N + 1]);
    assert_eq!(
        plans[0].as_ref().and_then(|plan| plan.tail.clone()),
        tail(N + 1)
    );
}
