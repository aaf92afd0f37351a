//! `driftq-sim check`.

use super::args::Check;
use super::{Ending, Misuse, say};
use crate::history;

pub(super) fn check(args: &Check) -> Result<Ending, Misuse> {
    let path = &args.history;
    let entries = history::read(path).map_err(|cause| Misuse::History { path: path.clone(), cause })?;
    let mut report = history::check(&entries);
    if let Some(folder) = &args.data_dir {
        let compared = history::compare(&entries, folder);
        report = report.and(compared.map_err(|cause| Misuse::Log { path: folder.clone(), cause })?);
    }
    say!("{}", report.to_string().trim_end());
    say!();
    let (ending, word) = if report.passed() { (Ending::Passed, "PASSED") } else { (Ending::Broken, "FAILED") };
    say!("{word}");
    Ok(ending)
}
