//! Drawing of the live view.

use super::numbers::{count, rate, share, time};
use super::overload::Overload;
use super::text;
use super::view::{Pane, Row, View};
use crate::admin::ServerStatus;
use crate::commands::terminal::escape;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Cell, Clear, Paragraph, Row as TableRow, Sparkline, Table, TableState, Wrap,
};
use std::time::Duration;

/// Width of the usage gauge.
const GAUGE_WIDTH: usize = 8;

const BAD: Style = Style::new().fg(Color::Red);
const WARNING: Style = Style::new().fg(Color::Yellow);
const GOOD: Style = Style::new().fg(Color::Green);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

pub(super) fn draw(view: &View, frame: &mut Frame<'_>) {
    let server_lines = server_lines(view);
    let server_height = u16::try_from(server_lines.len())
        .unwrap_or(u16::MAX)
        .saturating_add(2)
        .min(frame.area().height / 3);
    let keys_height = match frame.area().height {
        0..=21 => 0,
        height => (height / 4).clamp(5, 12),
    };
    let [head, traffic, policies, keys, server, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Min(4),
        Constraint::Length(keys_height),
        Constraint::Max(server_height),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(title(view)), head);
    draw_traffic(view, frame, traffic);
    draw_policies(view, frame, policies);
    let [active, denied] = Layout::horizontal([Constraint::Fill(1); 2]).areas(keys);
    draw_keys(view, Pane::MostActive, "most active keys", frame, active);
    draw_keys(view, Pane::MostDenied, "most denied keys", frame, denied);
    frame.render_widget(
        Paragraph::new(server_lines).block(Block::bordered().title(" server ")),
        server,
    );
    frame.render_widget(foot_line(view), foot);
    if view.help {
        draw_help(frame);
    }
}

fn title(view: &View) -> Vec<Span<'static>> {
    let Some(ServerStatus {
        version,
        serving,
        uptime_ms,
        ready,
        ..
    }) = view.now.as_ref().map(|now| &now.status)
    else {
        return vec![Span::raw(format!(" ratekeeper at {}", view.url))];
    };
    let up = time(Duration::from_millis(*uptime_ms));
    let state = if *ready {
        Span::styled("ready", GOOD)
    } else {
        Span::styled("not ready", BAD)
    };
    let version = escape(version);
    let serving = escape(serving);
    vec![
        Span::styled(format!(" ratekeeper {version}"), BOLD),
        Span::raw(format!("  {}  {serving}  up {up}  ", view.url)),
        state,
    ]
}

fn draw_traffic(view: &View, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered().title(" decisions per second ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [rates, history] =
        Layout::horizontal([Constraint::Length(24), Constraint::Fill(1)]).areas(inner);
    let lines = match view.rates {
        None => vec![Line::from(Span::styled("no rate yet", DIM))],
        Some(rates) => vec![
            Line::from(vec![Span::styled(rate(rates.all()), BOLD), Span::raw("/s")]),
            Line::from(format!("allowed {}/s", rate(rates.allowed))),
            Line::from(vec![
                Span::raw(format!("denied {}/s ", rate(rates.denied))),
                Span::styled(
                    share(rates.denied, rates.all()),
                    if rates.denied > 0.0 { BAD } else { DIM },
                ),
            ]),
        ],
    };
    frame.render_widget(Paragraph::new(lines), rates);
    // The newest is at the right edge.
    let width = usize::from(history.width);
    let newest: Vec<u64> = view
        .history
        .iter()
        .skip(view.history.len().saturating_sub(width))
        .copied()
        .collect();
    let padded: Vec<u64> = std::iter::repeat_n(0, width - newest.len())
        .chain(newest)
        .collect();
    frame.render_widget(
        Sparkline::default()
            .data(padded)
            .style(Style::new().fg(Color::Cyan)),
        history,
    );
}

fn draw_policies(view: &View, frame: &mut Frame<'_>, area: Rect) {
    let title = format!(" policies, {} ", view.sort.label());
    let block = Block::bordered()
        .title(title)
        .border_style(border(view, Pane::Policies));
    // A narrow terminal shows only the columns that change.
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| column.always || area.width >= WIDE_COLUMNS)
        .collect();
    let head = TableRow::new(columns.iter().map(|column| Cell::from(column.title))).style(DIM);
    let rows = view
        .rows
        .iter()
        .map(|row| TableRow::new(columns.iter().map(|column| Cell::from((column.cell)(row)))));
    let widths = columns.iter().map(|column| column.width);
    let table = Table::new(rows, widths)
        .header(head)
        .block(block)
        .row_highlight_style(highlight(view, Pane::Policies));
    let selected = view.selected[Pane::Policies as usize];
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

/// Terminal width that fits all columns of the table.
const WIDE_COLUMNS: u16 = 100;

/// A column of the table of policies.
struct Column {
    title: &'static str,
    width: Constraint,
    /// Whether it is shown on narrow terminals too.
    always: bool,
    cell: fn(&Row) -> Line<'static>,
}

const fn column(
    title: &'static str,
    width: Constraint,
    always: bool,
    cell: fn(&Row) -> Line<'static>,
) -> Column {
    Column {
        title,
        width,
        always,
        cell,
    }
}

const COLUMNS: [Column; 9] = [
    column("policy", Constraint::Fill(3), true, |row| {
        match &*row.mode {
            "shadow" => Line::from(format!("{} (shadow)", row.name)),
            _ => Line::from(row.name.clone()),
        }
    }),
    column("by", Constraint::Fill(1), false, |row| {
        Line::from(row.by.clone())
    }),
    column("limits", Constraint::Fill(3), false, |row| {
        Line::from(row.limits.clone())
    }),
    column("allowed/s", Constraint::Length(9), true, |row| {
        Line::from(row.rates.map_or(unknown(), |rates| rate(rates.allowed)))
    }),
    column("denied/s", Constraint::Length(9), true, |row| {
        Line::from(row.rates.map_or(unknown(), |rates| rate(rates.denied)))
    }),
    column("denied", Constraint::Length(7), true, |row| {
        // The share since the start, until there is a rate.
        let shown = row.rates.unwrap_or(row.counts);
        Line::from(Span::styled(
            share(shown.denied, shown.all()),
            if shown.denied > 0.0 {
                BAD
            } else {
                Style::new()
            },
        ))
    }),
    column("shadow", Constraint::Length(8), false, |row| {
        Line::from(count(row.shadow))
    }),
    column("keys", Constraint::Length(9), true, |row| {
        Line::from(row.keys.map_or(unknown(), count))
    }),
    column(
        "usage",
        Constraint::Length(GAUGE_WIDTH as u16 + 5),
        true,
        usage,
    ),
];

fn unknown() -> String {
    "–".to_owned()
}

fn usage(row: &Row) -> Line<'static> {
    match row.usage {
        None => Line::from(unknown()),
        Some((usage, false)) => Line::from(format!("{} cost", count(usage as u64))),
        Some((usage, true)) => {
            let full = ((usage * GAUGE_WIDTH as f64).round() as usize).min(GAUGE_WIDTH);
            let style = match usage {
                usage if usage >= 0.95 => BAD,
                usage if usage >= 0.7 => WARNING,
                _ => GOOD,
            };
            Line::from(vec![
                Span::styled("█".repeat(full), style),
                Span::styled("░".repeat(GAUGE_WIDTH - full), DIM),
                Span::raw(format!(" {:>3.0}%", 100.0 * usage)),
            ])
        }
    }
}

fn draw_keys(view: &View, pane: Pane, title: &str, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered()
        .title(format!(" {title} "))
        .border_style(border(view, pane));
    let rows = view.keys(pane).iter().map(|key| {
        let requests = if key.at_least == key.count {
            count(key.count)
        } else {
            format!("{} to {}", count(key.at_least), count(key.count))
        };
        TableRow::new([escape(&key.key), escape(&key.policy), requests].map(Cell::from))
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(14),
    ];
    let table = Table::new(rows, widths)
        .block(block)
        .row_highlight_style(highlight(view, pane));
    frame.render_stateful_widget(
        table,
        area,
        &mut TableState::new().with_selected(view.selected[pane as usize]),
    );
}

/// Lines about the store, waiting requests and the configuration, breakers and overload.
fn server_lines(view: &View) -> Vec<Line<'static>> {
    let Some(status) = view.now.as_ref().map(|now| &now.status) else {
        return Vec::new();
    };
    let is_unavailable = status.store.fallback_active || status.store.error.is_some();
    let counts = format!(
        "waiting {}, overrides {}, ",
        count(status.waiting),
        count(status.overrides)
    );
    let stale = if status.reloads.stale {
        WARNING
    } else {
        Style::new()
    };
    let mut lines = vec![
        Line::from(Span::styled(
            text::store(status),
            if is_unavailable { BAD } else { Style::new() },
        )),
        Line::from(vec![
            Span::raw(counts),
            Span::styled(text::reloads(status), stale),
        ]),
    ];
    if !status.breakers.is_empty() {
        let mut breakers: Vec<_> = status.breakers.iter().collect();
        // Those that are not closed come first, because not all may fit.
        breakers.sort_by_key(|breaker| breaker.state == "closed");
        let spans = breakers.iter().flat_map(|breaker| {
            let style = match &*breaker.state {
                "closed" | "forced_closed" | "metrics_only" => GOOD,
                "half_open" => WARNING,
                _ => BAD,
            };
            [
                Span::raw(format!(" {} ", escape(&breaker.name))),
                Span::styled(escape(&breaker.state), style),
            ]
        });
        lines.push(Line::from_iter(
            [Span::raw("breakers")].into_iter().chain(spans),
        ));
    }
    let overload = Overload::of(status.overload.as_ref());
    lines.extend(overload.iter().flat_map(Overload::lines).map(Line::from));
    lines
}

fn foot_line(view: &View) -> Line<'static> {
    let keys = " q quit  tab arrows move  s sort  p pause  ? help";
    if let Some(error) = &view.error {
        Line::from(Span::styled(format!(" {error}; retrying"), BAD))
    } else if view.paused {
        Line::from(vec![Span::styled(" paused ", WARNING), Span::raw(keys)])
    } else {
        Line::from(Span::styled(keys, DIM))
    }
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines = [
        "q, ctrl-c      quit",
        "tab, ← →       next list",
        "↑ ↓, page      move in the list",
        "s              sort the policies: as configured, by requests, by denied, by usage",
        "p, space       pause",
        "?, esc         this help",
        "",
        "Rates are since the previous update; usage is the share used, or the cost allowed in the \
         last window. Keys are fingerprints unless [stats] has keys = \"plain\".",
    ];
    let area = frame.area();
    let (width, height) = (area.width.min(76), area.height.min(13));
    let area = Rect::new(
        (area.width - width) / 2,
        (area.height - height) / 2,
        width,
        height,
    );
    frame.render_widget(Clear, area);
    let help = Paragraph::new(lines.map(Line::from).to_vec()).wrap(Wrap { trim: false });
    frame.render_widget(help.block(Block::bordered().title(" help ")), area);
}

fn border(view: &View, pane: Pane) -> Style {
    if view.pane == pane {
        Style::new().fg(Color::Cyan)
    } else {
        Style::new()
    }
}

fn highlight(view: &View, pane: Pane) -> Style {
    if view.pane == pane {
        Style::new().add_modifier(Modifier::REVERSED)
    } else {
        Style::new()
    }
}
