//! The screen of `dunlin top`, drawn from its state alone.

use super::state::{Cell, Flow, Mood, Pane, State, Table, per_second, seconds};
use crate::output::counted;
use dunlin_proxy::route::Step;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{self, Paragraph, Row},
};
use std::time::{Duration, Instant};

/// Width of the bar that shows the slots in use, cells.
const BAR: u32 = 20;
/// Between two columns, cells.
const GAP: u16 = 2;
/// A look that is older is called so.
const OLD: Duration = Duration::from_secs(3);
const KEYS: &str = " q quit   tab or 1-3 table   ←→ sort by   r reverse   ↑↓ scroll";

/// Draws everything. `now` tells how old the last look is.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, now: Instant) {
    let head = head(state, now);
    let lines = u16::try_from(head.len()).unwrap_or(u16::MAX);
    let areas = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]);
    let [top, tabs, body, keys] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    frame.render_widget(Paragraph::new(tab_line(state.pane)), tabs);
    table(frame, state, body);
    frame.render_widget(Paragraph::new(KEYS).dim(), keys);
}

fn head(state: &State, now: Instant) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let Some(newest) = state.newest() else { return vec![Line::from("looking ...")] };
    let status = &newest.status;
    let name = status.name.as_ref().map_or_else(|| status.peer.clone(), ToString::to_string);
    let peers = counted(status.connected, "peer");
    let models = counted(status.models, "model");
    let mesh = status.mesh.get(..8).unwrap_or_default();
    lines.push(Line::from(vec![
        Span::from(format!(" dunlin {}  ", status.version)).bold(),
        Span::from(format!("{name} in mesh {mesh}..   {peers} connected   {models}")),
    ]));
    let (busy, slots) = state.slots();
    let filled = if slots == 0 { 0 } else { (busy * BAR).div_ceil(slots).min(BAR) };
    let bar = format!("{}{}", "█".repeat(filled as usize), "░".repeat((BAR - filled) as usize));
    lines.push(Line::from(format!(" slots     {bar} {busy} of {slots} busy")));
    match &newest.proxy {
        None => lines.push(Line::from(" endpoint  none: the node that runs here is no proxy").dim()),
        Some(counts) => {
            let waiting = format!("{:.0} waiting", counts.waiting);
            let queue = if counts.waiting > 0.0 { Span::from(waiting).yellow() } else { Span::from(waiting) };
            lines.push(Line::from(vec![
                Span::from(format!(
                    " endpoint  {}/v1   {}   {:.0} in flight   ",
                    newest.process.endpoint.as_deref().unwrap_or_default(),
                    counted(counts.connections as usize, "client"),
                    counts.in_flight,
                )),
                queue,
            ]));
            let totals = format!("ejected {:.0}   broken off {:.0} since the start", counts.ejections, counts.broken);
            lines.extend(state.flow().map(|flow| flow_lines(&flow, &totals)).unwrap_or_default());
        }
    }
    let age = now.saturating_duration_since(newest.at);
    let problem = state.problem.clone().or_else(|| (age > OLD).then(|| "the node is slow to answer".to_owned()));
    if let Some(problem) = problem {
        let line = format!(" as of {} ago: {problem}; trying again", seconds(age.as_secs_f64()));
        lines.push(Line::from(line).style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)));
    }
    lines
}

fn flow_lines(flow: &Flow, totals: &str) -> Vec<Line<'static>> {
    let latency = |quantile| flow.first_byte.quantile(quantile).map_or_else(|| "-".to_owned(), seconds);
    let refused = format!("{}/s refused", per_second(flow.refused));
    let share = |step: Step| {
        let share = flow.routes.get(step.as_str()).copied().unwrap_or(0.0);
        format!("{} {:.0} %   ", step.as_str(), share * 100.0)
    };
    let shares: String = Step::ALL.map(share).concat();
    vec![
        Line::from(vec![
            Span::from(format!(
                " requests  {}/s   first byte p50 {} p95 {}   ",
                per_second(flow.answered),
                latency(0.5),
                latency(0.95)
            )),
            if flow.refused > 0.0 { Span::from(refused).red() } else { Span::from(refused) },
        ]),
        Line::from(format!(" routes    {shares}retried {}/s   {totals}", per_second(flow.retries))),
    ]
}

fn tab_line(shown: Pane) -> Line<'static> {
    let tabs = (1..).zip(Pane::ALL).flat_map(|(number, pane)| {
        let text = Span::from(format!(" {number} {} ", pane.title()));
        [if pane == shown { text.reversed() } else { text.dim() }, Span::from(" ")]
    });
    Line::from_iter(std::iter::once(Span::from(" ")).chain(tabs))
}

fn table(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let Table { header, rows } = state.table();
    if rows.is_empty() {
        let none = match state.pane {
            Pane::Peers => " no peer is known",
            Pane::Replicas | Pane::Models => " no replica is known; `dunlin doctor` looks for the reason",
        };
        return frame.render_widget(Paragraph::new(none).dim(), area);
    }
    let (column, reversed) = state.sorted_by();
    let titles = header.iter().enumerate().map(|(at, title)| match at == column {
        true => format!("{title}{}", if reversed { "▲" } else { "▼" }),
        false => (*title).to_owned(),
    });
    let titles: Vec<String> = titles.collect();
    let widths = titles.iter().enumerate().map(|(at, title)| {
        let widest = rows.iter().map(|row| row[at].text.chars().count()).max().unwrap_or(0);
        u16::try_from(widest.max(title.chars().count())).unwrap_or(u16::MAX)
    });
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(1), ..area };
    let widths = fitting(widths, area.width);
    let columns = widths.len();
    let visible = usize::from(area.height.saturating_sub(1));
    let first = state.first_row().min(rows.len().saturating_sub(visible));
    let shown = rows.into_iter().skip(first).take(visible);
    let shown = shown.map(|cells| Row::new(cells.into_iter().take(columns).map(cell)));
    let header = Row::new(titles.into_iter().take(columns)).bold();
    let widget = widgets::Table::new(shown, widths).header(header).column_spacing(GAP);
    frame.render_widget(widget, area);
}

/// The columns that fit, from the left, and of the next one what room is left: a narrow screen shows less, not crumbs of all.
fn fitting(widths: impl Iterator<Item = u16>, mut room: u16) -> Vec<Constraint> {
    let mut columns = Vec::new();
    for width in widths {
        if room == 0 {
            break;
        }
        columns.push(Constraint::Length(width.min(room)));
        room = room.saturating_sub(width.saturating_add(GAP));
    }
    columns
}

fn cell(cell: Cell) -> Span<'static> {
    let text = Span::from(cell.text);
    match cell.mood {
        Mood::Plain => text,
        Mood::Wait => text.yellow(),
        Mood::Bad => text.red(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{busy, sample};
    use super::*;
    use crossterm::event::{KeyCode, KeyEvent};
    use ratatui::{Terminal, backend::TestBackend};

    fn screen(state: &State, now: Instant, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, now)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    #[test]
    fn the_screen_tells_what_is_going_on() {
        let start = Instant::now();
        let mut state = State::new();
        assert_eq!(screen(&state, start, 40, 6)[0], "looking ...");
        for second in 0..=5 {
            state.look(busy(start, second));
        }
        let now = start + Duration::from_secs(5);
        let lines = screen(&state, now, 120, 14);
        let text = lines.join("\n");
        for wanted in [
            "desk in mesh 0a0b0c0d..   1 peer connected   1 model",
            "███████████████░░░░░ 6 of 8 busy",
            "http://127.0.0.1:8480/v1   3 clients   6 in flight   2 waiting",
            "requests  10/s   first byte p50 50 ms p95 95 ms   0.0/s refused",
            "fresh 75 %   stale 0 %   round-robin 25 %   retried 0.2/s   ejected 0   broken off 0",
            "1 Replicas   2 Models   3 Peers",
        ] {
            let spaced = wanted.split_whitespace().collect::<Vec<_>>().join(" ");
            let seen = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(seen.contains(&spaced), "{wanted} in\n{text}");
        }
        let header = lines.iter().position(|line| line.contains("REPLICA▼")).unwrap();
        let row: Vec<_> = lines[header + 1].split_whitespace().collect();
        let wanted =
            ["desk/0", "ready", "6", "8", "1", "42", "%", "30", "ms", "120", "200", "ms", "vllm", "qwen", "qwen-lora"];
        assert_eq!(row, wanted);
        assert!(lines[13].contains("q quit"), "{text}");
    }

    #[test]
    fn other_tables_are_a_key_away() {
        let start = Instant::now();
        let mut state = State::new();
        state.look(busy(start, 0));
        state.look(busy(start, 4));
        state.key(KeyEvent::from(KeyCode::Tab));
        let models = screen(&state, start + Duration::from_secs(4), 120, 14).join("\n");
        let row = models.lines().find(|line| line.contains("qwen ")).unwrap().to_owned();
        let row: Vec<_> = row.split_whitespace().collect();
        assert_eq!(row, ["qwen", "1/1", "6", "8", "1", "10", "0.0", "50", "ms", "95", "ms", "120"]);
        state.key(KeyEvent::from(KeyCode::Char('3')));
        let peers = screen(&state, start + Duration::from_secs(4), 120, 14).join("\n");
        assert!(peers.contains("agent,proxy") && peers.contains("self"), "{peers}");
    }

    #[test]
    fn a_narrow_screen_shows_fewer_columns() {
        let start = Instant::now();
        let mut state = State::new();
        state.look(busy(start, 0));
        let lines = screen(&state, start, 40, 12);
        let row = lines.iter().find(|line| line.contains("desk/0")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["desk/0", "ready", "6", "8", "1", "42", "%"]);
        assert!(lines.iter().any(|line| line.contains("REPLICA▼  STATE  RUN  SLOTS  WAIT  KV")), "{lines:?}");
    }

    #[test]
    fn any_size_can_be_drawn() {
        let start = Instant::now();
        let mut state = State::new();
        state.look(busy(start, 0));
        state.look(busy(start, 1));
        for (width, height) in [(1, 1), (2, 40), (200, 2), (20, 5), (300, 90)] {
            assert_eq!(screen(&state, start, width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn a_node_that_does_not_answer_is_said_to() {
        let start = Instant::now();
        let mut state = State::new();
        state.look(sample(start));
        let later = start + Duration::from_secs(4);
        assert!(screen(&state, later, 100, 9).join("\n").contains("as of 4.0 s ago: the node is slow to answer"));
        state.fail("the node hung up".to_owned());
        assert!(screen(&state, later, 100, 9).join("\n").contains("the node hung up; trying again"));
        state.look(sample(later));
        assert!(!screen(&state, later, 100, 9).join("\n").contains("trying again"));
    }
}
