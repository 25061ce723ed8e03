//! A view on a terminal.

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

/// The usage of a policy, as wide as this.
const GAUGE: usize = 8;

const BAD: Style = Style::new().fg(Color::Red);
const DOUBTFUL: Style = Style::new().fg(Color::Yellow);
const GOOD: Style = Style::new().fg(Color::Green);
const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
const LOUD: Style = Style::new().add_modifier(Modifier::BOLD);

pub(super) fn draw(view: &View, frame: &mut Frame<'_>) {
    let facts = facts(view);
    let facts_height = u16::try_from(facts.len())
        .unwrap_or(u16::MAX)
        .saturating_add(2)
        .min(frame.area().height / 3);
    let keys_height = match frame.area().height {
        0..=21 => 0,
        height => (height / 4).clamp(5, 12),
    };
    let [head, traffic, policies, keys, below, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Min(4),
        Constraint::Length(keys_height),
        Constraint::Max(facts_height),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::from(title(view)), head);
    draw_traffic(view, frame, traffic);
    draw_policies(view, frame, policies);
    let [heaviest, denied] = Layout::horizontal([Constraint::Fill(1); 2]).areas(keys);
    draw_keys(view, Pane::Heaviest, "heaviest keys", frame, heaviest);
    draw_keys(view, Pane::MostDenied, "most denied keys", frame, denied);
    frame.render_widget(
        Paragraph::new(facts).block(Block::bordered().title(" service ")),
        below,
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
    let (version, serving) = (escape(version), escape(serving));
    vec![
        Span::styled(format!(" ratekeeper {version}"), LOUD),
        Span::raw(format!("  {}  {serving}  up {up}  ", view.url)),
        state,
    ]
}

fn draw_traffic(view: &View, frame: &mut Frame<'_>, area: Rect) {
    let block = Block::bordered().title(" decisions a second ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [figures, past] =
        Layout::horizontal([Constraint::Length(24), Constraint::Fill(1)]).areas(inside);
    let lines = match view.rates {
        None => vec![Line::from(Span::styled("no rate yet", QUIET))],
        Some(rates) => vec![
            Line::from(vec![Span::styled(rate(rates.all()), LOUD), Span::raw("/s")]),
            Line::from(format!("passed {}/s", rate(rates.passed))),
            Line::from(vec![
                Span::raw(format!("denied {}/s ", rate(rates.denied))),
                Span::styled(
                    share(rates.denied, rates.all()),
                    if rates.denied > 0.0 { BAD } else { QUIET },
                ),
            ]),
        ],
    };
    frame.render_widget(Paragraph::new(lines), figures);
    // The newest at the right edge.
    let width = usize::from(past.width);
    let newest: Vec<u64> = view
        .past
        .iter()
        .skip(view.past.len().saturating_sub(width))
        .copied()
        .collect();
    let padded: Vec<u64> = std::iter::repeat_n(0, width - newest.len())
        .chain(newest)
        .collect();
    frame.render_widget(
        Sparkline::default()
            .data(padded)
            .style(Style::new().fg(Color::Cyan)),
        past,
    );
}

fn draw_policies(view: &View, frame: &mut Frame<'_>, area: Rect) {
    let title = format!(" policies, {} ", view.sort.words());
    let block = Block::bordered()
        .title(title)
        .border_style(border(view, Pane::Policies));
    // On a narrow terminal what does not change makes room for what does.
    let columns: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| column.always || area.width >= WIDE)
        .collect();
    let head = TableRow::new(columns.iter().map(|column| Cell::from(column.title))).style(QUIET);
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

/// So many columns of a terminal are enough for all columns of the table.
const WIDE: u16 = 100;

/// A column of the table of policies.
struct Column {
    title: &'static str,
    width: Constraint,
    /// Whether it is there on narrow terminals too.
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
    column("passed/s", Constraint::Length(9), true, |row| {
        Line::from(row.rates.map_or(unknown(), |rates| rate(rates.passed)))
    }),
    column("denied/s", Constraint::Length(9), true, |row| {
        Line::from(row.rates.map_or(unknown(), |rates| rate(rates.denied)))
    }),
    column("denied", Constraint::Length(7), true, |row| {
        // What was counted since the start, until there is a rate.
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
    column("usage", Constraint::Length(GAUGE as u16 + 5), true, usage),
];

fn unknown() -> String {
    "–".to_owned()
}

fn usage(row: &Row) -> Line<'static> {
    match row.usage {
        None => Line::from(unknown()),
        Some((usage, false)) => Line::from(format!("{} cost", count(usage as u64))),
        Some((usage, true)) => {
            let full = ((usage * GAUGE as f64).round() as usize).min(GAUGE);
            let style = match usage {
                usage if usage >= 0.95 => BAD,
                usage if usage >= 0.7 => DOUBTFUL,
                _ => GOOD,
            };
            Line::from(vec![
                Span::styled("█".repeat(full), style),
                Span::styled("░".repeat(GAUGE - full), QUIET),
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
        // At most so many, and if it is not known exactly, at least so many.
        let many = match key.at_least == key.count {
            true => count(key.count),
            false => format!("{} to {}", count(key.at_least), count(key.count)),
        };
        TableRow::new([escape(&key.key), escape(&key.policy), many].map(Cell::from))
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

/// Store, configuration and who waits, breakers, limits that move: a line each.
fn facts(view: &View) -> Vec<Line<'static>> {
    let Some(status) = view.now.as_ref().map(|now| &now.status) else {
        return Vec::new();
    };
    let is_away = status.store.fallback_active || status.store.error.is_some();
    let others = format!(
        "waiting {}, overrides {}, ",
        count(status.waiting),
        count(status.overrides)
    );
    let stale = if status.reloads.stale {
        DOUBTFUL
    } else {
        Style::new()
    };
    let mut lines = vec![
        Line::from(Span::styled(
            text::store(status),
            if is_away { BAD } else { Style::new() },
        )),
        Line::from(vec![
            Span::raw(others),
            Span::styled(text::reloads(status), stale),
        ]),
    ];
    if !status.breakers.is_empty() {
        let mut breakers: Vec<_> = status.breakers.iter().collect();
        // Those that are not closed first: there may be more than fit.
        breakers.sort_by_key(|breaker| breaker.state == "closed");
        let told = breakers.iter().flat_map(|breaker| {
            let style = match &*breaker.state {
                "closed" | "forced_closed" | "metrics_only" => GOOD,
                "half_open" => DOUBTFUL,
                _ => BAD,
            };
            [
                Span::raw(format!(" {} ", escape(&breaker.name))),
                Span::styled(escape(&breaker.state), style),
            ]
        });
        lines.push(Line::from_iter(
            [Span::raw("breakers")].into_iter().chain(told),
        ));
    }
    let pressure = Overload::of(status.overload.as_ref());
    lines.extend(pressure.iter().flat_map(Overload::lines).map(Line::from));
    lines
}

fn foot_line(view: &View) -> Line<'static> {
    let keys = " q quit  tab arrows move  s sort  p pause  ? help";
    match (&view.trouble, view.paused) {
        (Some(trouble), _) => Line::from(Span::styled(format!(" {trouble}; trying again"), BAD)),
        (None, true) => Line::from(vec![Span::styled(" paused ", DOUBTFUL), Span::raw(keys)]),
        (None, false) => Line::from(Span::styled(keys, QUIET)),
    }
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines = [
        "q, ctrl-c      quit",
        "tab, ← →       to the next list",
        "↑ ↓, page      move in it",
        "s              sort the policies: as configured, by requests, by denied, by usage",
        "p, space       pause",
        "?, esc         this help",
        "",
        "Rates are those since the look before. Under usage: the share used of a policy with one bucket for all, else the \
         cost admitted in its last window. Keys are fingerprints unless [stats] says keys = \"plain\".",
    ];
    let area = frame.area();
    let (width, height) = (area.width.min(76), area.height.min(13));
    let place = Rect::new(
        (area.width - width) / 2,
        (area.height - height) / 2,
        width,
        height,
    );
    frame.render_widget(Clear, place);
    let help = Paragraph::new(lines.map(Line::from).to_vec()).wrap(Wrap { trim: false });
    frame.render_widget(help.block(Block::bordered().title(" help ")), place);
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
