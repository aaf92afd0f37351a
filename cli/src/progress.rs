//! Progress of long work, on standard error of a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often it is drawn, per second.
const DRAWS_PER_SECOND: u8 = 10;

/// A bar up to a total, or a count where the total is not known. It draws nothing unless standard error is a terminal.
pub(crate) fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let (template, length) = match total {
        Some(total) => ("{prefix} {bar:30} {human_pos}/{human_len}  {per_sec}  {eta}", total),
        None => ("{prefix} {spinner} {human_pos}  {per_sec}  {elapsed}", 0),
    };
    let bar =
        ProgressBar::with_draw_target(total.map(|_| length), ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND));
    // The templates are constants; a wrong one would show the default bar.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what);
    if total.is_none() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
