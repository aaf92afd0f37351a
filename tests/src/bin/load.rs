//! `load`: measures a broker over HTTP. See [`driftq_tests::load`].

fn main() -> std::process::ExitCode {
    driftq_tests::load::main()
}
