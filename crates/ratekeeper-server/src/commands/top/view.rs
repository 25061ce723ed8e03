//! The state of the live view and its key bindings, independent of the terminal.

use super::Snapshot;
use crate::admin::{Key, PolicyStatus, RuleStatus, Totals};
use crate::commands::terminal::escape;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Rates kept for the sparkline: one for each column of a wide terminal.
const MAX_HISTORY: usize = 512;

/// A list with a selected row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pane {
    Policies,
    MostActive,
    MostDenied,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Policies, Self::MostActive, Self::MostDenied];
}

/// The order of the policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    AsConfigured,
    Requests,
    Denied,
    Usage,
}

impl Sort {
    const ALL: [Self; 4] = [
        Self::AsConfigured,
        Self::Requests,
        Self::Denied,
        Self::Usage,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::AsConfigured => "as configured",
            Self::Requests => "by requests",
            Self::Denied => "by denied",
            Self::Usage => "by usage",
        }
    }
}

/// Numbers or rates of allowed requests, delayed ones included, and of denied ones.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Outcomes {
    pub(super) allowed: f64,
    pub(super) denied: f64,
}

impl Outcomes {
    pub(super) fn all(self) -> f64 {
        self.allowed + self.denied
    }
}

/// A policy or an Envoy rule.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) mode: String,
    pub(super) by: String,
    pub(super) limits: String,
    /// Numbers since the server started.
    pub(super) counts: Outcomes,
    /// Allowed requests that were delayed.
    pub(super) delayed: u64,
    /// Requests that a policy in shadow mode would have denied.
    pub(super) shadow: u64,
    /// Rates per second since the previous update; `None` at first.
    pub(super) rates: Option<Outcomes>,
    pub(super) keys: Option<u64>,
    /// The usage, and whether it is a share.
    pub(super) usage: Option<(f64, bool)>,
}

/// The state of the live view.
pub(super) struct View {
    pub(super) url: String,
    pub(super) now: Option<Snapshot>,
    pub(super) rows: Vec<Row>,
    pub(super) rates: Option<Outcomes>,
    /// Decisions per second, the newest last.
    pub(super) history: VecDeque<u64>,
    /// Why the last update failed, in one sentence.
    pub(super) error: Option<String>,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) sort: Sort,
    pub(super) pane: Pane,
    /// The selected row of each list.
    pub(super) selected: [usize; 3],
}

/// The effect of a key on the main loop.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ViewAction {
    Continue,
    Quit,
}

impl View {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            now: None,
            rows: Vec::new(),
            rates: None,
            history: VecDeque::new(),
            error: None,
            paused: false,
            help: false,
            sort: Sort::AsConfigured,
            pane: Pane::Policies,
            selected: [0; 3],
        }
    }

    /// Applies the result of a request.
    pub(super) fn update(&mut self, result: Result<Snapshot, String>) {
        match result {
            Err(error) => {
                self.error = Some(error);
                self.rates = None;
            }
            Ok(_) if self.paused => {}
            Ok(snapshot) => {
                self.error = None;
                self.set_snapshot(snapshot);
            }
        }
    }

    fn set_snapshot(&mut self, snapshot: Snapshot) {
        let status = &snapshot.status;
        // After a restart of the server the counts are lower, and there is no rate yet.
        let previous = self
            .now
            .as_ref()
            .map(|previous| &previous.status)
            .filter(|previous| previous.uptime_ms <= status.uptime_ms);
        let elapsed =
            previous.map(|previous| Duration::from_millis(status.uptime_ms - previous.uptime_ms));
        let elapsed = elapsed.filter(|elapsed| !elapsed.is_zero());
        let rates = |now: Outcomes, previous: Option<Outcomes>| {
            let previous = previous?;
            let seconds = elapsed?.as_secs_f64();
            let rate = |now: f64, previous: f64| (now - previous).max(0.0) / seconds;
            Some(Outcomes {
                allowed: rate(now.allowed, previous.allowed),
                denied: rate(now.denied, previous.denied),
            })
        };
        self.rates = rates(
            of_totals(&status.totals),
            previous.map(|previous| of_totals(&previous.totals)),
        );
        if let Some(rates) = self.rates {
            self.history.push_back(rates.all().round() as u64);
            if self.history.len() > MAX_HISTORY {
                self.history.pop_front();
            }
        }
        let previous_counts: HashMap<&str, Outcomes> = if previous.is_some() {
            self.rows
                .iter()
                .map(|row| (&*row.name, row.counts))
                .collect()
        } else {
            HashMap::new()
        };
        let mut rows = rows(&snapshot);
        for row in &mut rows {
            row.rates = rates(row.counts, previous_counts.get(&*row.name).copied());
        }
        self.rows = rows;
        self.now = Some(snapshot);
        self.sort_rows();
    }

    /// Sorts the policies, and keeps the selections within the lists.
    fn sort_rows(&mut self) {
        let counts = |row: &Row| row.rates.unwrap_or(row.counts);
        let descending: fn(f64, f64) -> std::cmp::Ordering = |a, b| b.total_cmp(&a);
        match self.sort {
            Sort::AsConfigured => {
                let Some(now) = &self.now else { return };
                let positions: HashMap<String, usize> = rows(now)
                    .into_iter()
                    .enumerate()
                    .map(|(at, row)| (row.name, at))
                    .collect();
                self.rows
                    .sort_by_key(|row| positions.get(&row.name).copied());
            }
            Sort::Requests => self
                .rows
                .sort_by(|a, b| descending(counts(a).all(), counts(b).all())),
            Sort::Denied => self
                .rows
                .sort_by(|a, b| descending(counts(a).denied, counts(b).denied)),
            Sort::Usage => self.rows.sort_by(|a, b| {
                descending(
                    a.usage.map_or(-1.0, |usage| usage.0),
                    b.usage.map_or(-1.0, |usage| usage.0),
                )
            }),
        }
        for pane in Pane::ALL {
            let last = self.len(pane).saturating_sub(1);
            let selected = &mut self.selected[pane as usize];
            *selected = (*selected).min(last);
        }
    }

    fn len(&self, pane: Pane) -> usize {
        match pane {
            Pane::Policies => self.rows.len(),
            Pane::MostActive => self.keys(pane).len(),
            Pane::MostDenied => self.keys(pane).len(),
        }
    }

    pub(super) fn keys(&self, pane: Pane) -> &[Key] {
        let Some(Snapshot { top, .. }) = &self.now else {
            return &[];
        };
        if pane == Pane::MostDenied {
            &top.most_denied
        } else {
            &top.most_active
        }
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> ViewAction {
        if key.kind == KeyEventKind::Release {
            return ViewAction::Continue;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            // A terminal in raw mode does not turn it into a signal.
            KeyCode::Char('c') if control => return ViewAction::Quit,
            KeyCode::Char('q') => return ViewAction::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Esc => self.help = false,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                let at = Sort::ALL
                    .iter()
                    .position(|sort| *sort == self.sort)
                    .unwrap_or_default();
                self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()];
                self.sort_rows();
            }
            KeyCode::Tab | KeyCode::Right => self.switch_pane(1),
            KeyCode::BackTab | KeyCode::Left => self.switch_pane(Pane::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at| at.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at| at.saturating_sub(1)),
            KeyCode::PageDown => self.select(|at| at.saturating_add(10)),
            KeyCode::PageUp => self.select(|at| at.saturating_sub(10)),
            KeyCode::Home => self.select(|_| 0),
            KeyCode::End => self.select(|_| usize::MAX),
            _ => {}
        }
        ViewAction::Continue
    }

    fn switch_pane(&mut self, by: usize) {
        self.pane = Pane::ALL[(self.pane as usize + by) % Pane::ALL.len()];
    }

    fn select(&mut self, to: impl Fn(usize) -> usize) {
        let last = self.len(self.pane).saturating_sub(1);
        let selected = &mut self.selected[self.pane as usize];
        *selected = to(*selected).min(last);
    }
}

fn of_totals(totals: &Totals) -> Outcomes {
    Outcomes {
        allowed: totals.allowed as f64,
        denied: totals.denied as f64,
    }
}

/// Rows of the policies, then of the Envoy rules, named as in `/metrics`.
pub(super) fn rows(snapshot: &Snapshot) -> Vec<Row> {
    let status = &snapshot.status;
    let policies = status.policies.iter().map(of_policy);
    policies.chain(status.envoy.iter().map(of_rule)).collect()
}

fn of_policy(policy: &PolicyStatus) -> Row {
    Row {
        name: escape(&policy.policy),
        mode: escape(&policy.mode),
        by: if policy.by.is_empty() {
            "all".to_owned()
        } else {
            escape(&policy.by.join(" "))
        },
        limits: escape(&policy.limits.join(", ")),
        counts: Outcomes {
            allowed: (policy.allowed + policy.delayed) as f64,
            denied: policy.denied as f64,
        },
        delayed: policy.delayed,
        shadow: policy.shadow_denied,
        rates: None,
        keys: policy.keys,
        usage: Some((policy.usage, policy.usage_is == "share")),
    }
}

fn of_rule(rule: &RuleStatus) -> Row {
    Row {
        name: escape(&format!("envoy {}", rule.rule)),
        mode: "enforce".to_owned(),
        by: "envoy".to_owned(),
        limits: String::new(),
        counts: Outcomes {
            allowed: rule.allowed as f64,
            denied: rule.denied as f64,
        },
        delayed: 0,
        shadow: rule.shadow_denied,
        rates: None,
        keys: None,
        usage: None,
    }
}
