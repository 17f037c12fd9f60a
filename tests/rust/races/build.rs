//! Says that the core is built with shuttle's locks.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(shuttle)");
    println!("cargo::rustc-cfg=shuttle");
}
