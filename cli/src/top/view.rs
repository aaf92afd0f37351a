//! Draws the model: what the broker does, then topics and groups, then keys.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::model::{Model, Row};
use crate::table::Tone;
use crate::text::{cut, visible};
use crate::units::{bytes, count, latency, millis, rate};

/// Columns that are left out of narrower terminals: streams and waiting.
const WIDE: u16 = 100;

/// Whether colors are wanted.
pub(super) fn has_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Draws a frame, and bounds how far the table is scrolled by what there is.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let [head, table, foot] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(heading(model)), head);
    let rows_shown = usize::from(table.height.saturating_sub(1));
    model.scroll = model.scroll.min(model.rows.len().saturating_sub(rows_shown));
    draw_table(frame, model, table);
    frame.render_widget(Paragraph::new(footing(model, rows_shown)), foot);
}

fn style(model: &Model, tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Faint => Style::new().add_modifier(Modifier::DIM),
        _ if !model.color => Style::new(),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn heading(model: &Model) -> Vec<Line<'static>> {
    let faint = style(model, Tone::Faint);
    let mut first = vec![Span::styled("driftq top", Style::new().add_modifier(Modifier::BOLD))];
    first.push(Span::raw(format!("  {}", visible(&model.urls))));
    let Some(sample) = &model.newest else {
        return vec![Line::from(first), away(model).unwrap_or_else(|| Line::styled("connecting", faint))];
    };
    let (ready, tone) = if sample.is_ready { ("ready", Tone::Good) } else { ("not ready", Tone::Bad) };
    first.push(Span::raw(format!("  driftqd {}  ", visible(&sample.version.version))));
    first.push(Span::styled(ready, style(model, tone)));
    if model.is_paused {
        first.push(Span::styled("  PAUSED", style(model, Tone::Warn).add_modifier(Modifier::BOLD)));
    }
    let metrics = &sample.metrics;
    let sync = metrics.quantile("driftq_log_sync_seconds", 0.99);
    let sync =
        sync.map_or_else(|| "-".to_owned(), |bound| if bound.is_finite() { latency(bound) } else { "slow".to_owned() });
    let memory = Line::from(format!(
        "state {} of {}  payloads {}  log {}  sync p99 {sync}",
        bytes(metrics.count("driftq_state_bytes")),
        bytes(metrics.count("driftq_state_bytes_max")),
        bytes(metrics.count("driftq_payload_memory_bytes")),
        bytes(metrics.count("driftq_log_size_bytes")),
    ));
    let rates = model.rates;
    let failed = if rates.failed > 0.0 { Tone::Warn } else { Tone::Plain };
    let traffic = Line::from(vec![
        Span::raw(format!(
            "produced {}/s  delivered {}/s  acked {}/s  ",
            rate(rates.produced),
            rate(rates.delivered),
            rate(rates.acked)
        )),
        Span::styled(format!("failed {}/s", rate(rates.failed)), style(model, failed)),
        Span::raw(format!("  streams {}", count(metrics.count("driftq_consumer_streams")))),
    ]);
    vec![Line::from(first), memory, traffic, away(model).unwrap_or_default()]
}

/// That the broker does not answer, since when, and why.
fn away(model: &Model) -> Option<Line<'static>> {
    let (error, since) = model.away.as_ref()?;
    let ago = Instant::now().saturating_duration_since(*since).as_secs() * 1_000;
    // The URL is in the line above, and there is little room.
    let why = model.urls.split(' ').find_map(|url| error.message().strip_prefix(url)?.strip_prefix(": "));
    let why = visible(why.unwrap_or(error.message()));
    let text = format!("no answer for {}, trying again: {why}", millis(ago));
    Some(Line::styled(text, style(model, Tone::Bad)))
}

fn draw_table(frame: &mut Frame<'_>, model: &Model, area: Rect) {
    let is_wide = area.width >= WIDE;
    let mut titles = vec![("TOPIC / GROUP", Constraint::Fill(1)), ("RATE/S", Constraint::Length(9))];
    titles.extend([("LAG", Constraint::Length(10)), ("IN FLIGHT", Constraint::Length(9))]);
    if is_wide {
        titles.extend([("WAITING", Constraint::Length(9)), ("STREAMS", Constraint::Length(7))]);
    }
    titles.extend([("OLDEST", Constraint::Length(7)), ("DEAD", Constraint::Length(7)), ("", Constraint::Length(9))]);
    let header = titles.iter().enumerate().map(|(column, (title, _))| {
        let line = Line::from(*title);
        Cell::new(if column == 0 { line } else { line.right_aligned() })
    });
    let header = TableRow::new(header).style(style(model, Tone::Faint).add_modifier(Modifier::UNDERLINED));
    let fixed: u16 =
        titles.iter().map(|(_, width)| if let Constraint::Length(width) = width { width + 1 } else { 0 }).sum();
    let name_width = usize::from(area.width.saturating_sub(fixed));
    let shown = model.rows.iter().skip(model.scroll).take(usize::from(area.height));
    let rows = shown.map(|row| TableRow::new(cells(model, row, is_wide, name_width)));
    frame.render_widget(Table::new(rows, titles.iter().map(|(_, width)| *width)).header(header), area);
}

fn cells(model: &Model, row: &Row, is_wide: bool, name_width: usize) -> Vec<Cell<'static>> {
    let name = if row.is_group { format!("  {}", visible(&row.name)) } else { visible(&row.name) };
    let name_style = if row.is_group { Style::new() } else { Style::new().add_modifier(Modifier::BOLD) };
    let right = |text: String, tone: Tone| Cell::new(Line::styled(text, style(model, tone)).right_aligned());
    let blank_zero = |number: u64| if number == 0 { String::new() } else { count(number) };
    let mut cells = vec![
        Cell::new(Span::styled(cut(&name, name_width), name_style)),
        right(row.rate.map(rate).unwrap_or_else(|| "-".to_owned()), Tone::Plain),
        right(count(row.lag), if row.is_group { Tone::Plain } else { Tone::Faint }),
        right(blank_zero(row.in_flight), Tone::Plain),
    ];
    if is_wide {
        cells.extend([right(blank_zero(row.waiting), Tone::Plain), right(blank_zero(row.streams), Tone::Plain)]);
    }
    let state = if matches!(row.state, "ok") { Tone::Good } else { Tone::Warn };
    // The two largest units do not fit beside all else.
    let oldest = row.oldest_ms.map(millis).unwrap_or_default();
    cells.extend([
        right(oldest, Tone::Plain),
        right(blank_zero(row.dead), Tone::Bad),
        right(row.state.to_owned(), state),
    ]);
    cells
}

fn footing(model: &Model, rows_shown: usize) -> Line<'static> {
    let order = if model.is_reversed { ", reversed" } else { "" };
    let mut text = format!("q quit  p pause  t r l f d sort: {}{order}", model.sort.name());
    if model.rows.len() > rows_shown {
        let last = (model.scroll + rows_shown).min(model.rows.len());
        text.push_str(&format!("  rows {}-{last} of {}", model.scroll + 1, model.rows.len()));
    }
    match &model.newest {
        Some(sample) if sample.left_out > 0 => {
            text.push_str(&format!("  {} topics not shown", count(sample.left_out as u64)));
        }
        Some(sample) if sample.topics.is_empty() => text.push_str("  no topics"),
        _ => {}
    }
    Line::styled(text, style(model, Tone::Faint))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use driftq_client::{Error, ErrorKind};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::Action;
    use super::super::model::tests::sample;
    use super::*;

    fn screen(model: &mut Model, columns: u16, lines: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("a terminal");
        terminal.draw(|frame| draw(frame, model)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..lines).map(line).collect()
    }

    fn model() -> Model {
        let start = Instant::now();
        let mut model = Model::new("http://127.0.0.1:8080".to_owned(), false);
        model.update(Ok(sample(start, &[("b", 1_000, 10, 0)])), start);
        let later = start + Duration::from_secs(1);
        model.update(Ok(sample(later, &[("b", 3_345, 1_010, 7)])), later);
        model
    }

    #[test]
    fn screen_of_80_by_24_shows_everything() {
        let lines = screen(&mut model(), 80, 24);
        assert_eq!(
            lines[..7],
            [
                "driftq top  http://127.0.0.1:8080  driftqd 1.2.3  ready",
                "state 1 MiB of 1 GiB  payloads 0 B  log 64 MiB  sync p99 800µs",
                "produced 0/s  delivered 0/s  acked 0/s  failed 0/s  streams 0",
                "",
                "TOPIC / GROUP              RATE/S        LAG IN FLIGHT  OLDEST    DEAD",
                "b                           2,345      1,010         7   1m 5s       7",
                "  g                         1,345      1,010         7   1m 5s                ok",
            ]
        );
        assert_eq!(lines[23], "q quit  p pause  t r l f d sort: lag");
    }

    #[test]
    fn broker_that_is_away_is_told_beside_the_last_figures() {
        let mut model = model();
        model.update(Err(Error::new(ErrorKind::Unavailable, "http://127.0.0.1:8080: refused")), Instant::now());
        model.act(Action::Pause);
        let lines = screen(&mut model, 80, 24);
        assert!(lines[0].ends_with("PAUSED"), "{lines:?}");
        assert_eq!(lines[3], "no answer for 0ms, trying again: refused");
        assert!(lines[5].starts_with("b "), "{lines:?}");
    }

    #[test]
    fn small_and_empty_screens_are_drawn() {
        let mut model = model();
        for (columns, lines) in [(1, 1), (20, 5), (200, 50)] {
            assert_eq!(screen(&mut model, columns, lines).len(), usize::from(lines));
        }
        let empty = screen(&mut Model::new("http://h".to_owned(), true), 80, 24);
        assert_eq!(empty[1], "connecting");
    }

    #[test]
    fn scrolling_ends_with_the_last_row() {
        let mut model = model();
        let at = Instant::now() + Duration::from_secs(9);
        let names: Vec<String> = (10..40).map(|number| format!("t{number}")).collect();
        let topics: Vec<_> = names.iter().map(|name| (name.as_str(), 0, 0, 0)).collect();
        model.update(Ok(sample(at, &topics)), at);
        model.act(Action::Down(1_000));
        let lines = screen(&mut model, 80, 24);
        assert!(lines[22].starts_with("  g"), "{lines:?}");
        assert!(lines[21].starts_with("t39"), "{lines:?}");
        assert!(lines[23].ends_with("rows 43-60 of 60"), "{lines:?}");
    }
}
