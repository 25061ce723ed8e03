//! What is shown and what keys do to it. Knows no terminal.

use super::Snapshot;
use crate::admin::{Key, PolicyStatus, RuleStatus, Totals};
use crate::commands::terminal::escape;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// So many rates are remembered for the sparkline: one a column of a wide terminal.
const REMEMBERED: usize = 512;

/// The lists that can be moved in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pane {
    Policies,
    Heaviest,
    MostDenied,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Policies, Self::Heaviest, Self::MostDenied];
}

/// What policies are sorted by.
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

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::AsConfigured => "as configured",
            Self::Requests => "by requests",
            Self::Denied => "by denied",
            Self::Usage => "by usage",
        }
    }
}

/// What passed, at once or later, and what was denied.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Pair {
    pub(super) passed: f64,
    pub(super) denied: f64,
}

impl Pair {
    pub(super) fn all(self) -> f64 {
        self.passed + self.denied
    }
}

/// A policy, or a rule of Envoy's.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) mode: String,
    pub(super) by: String,
    pub(super) limits: String,
    /// Since the service started.
    pub(super) counts: Pair,
    /// Of those that passed: who had to wait.
    pub(super) delayed: u64,
    /// Would have been denied by one that only watches.
    pub(super) shadow: u64,
    /// A second, since the look before; none at first.
    pub(super) rates: Option<Pair>,
    pub(super) keys: Option<u64>,
    /// And whether it is a share.
    pub(super) usage: Option<(f64, bool)>,
}

/// What is shown.
pub(super) struct View {
    pub(super) url: String,
    pub(super) now: Option<Snapshot>,
    pub(super) rows: Vec<Row>,
    pub(super) rates: Option<Pair>,
    /// Decisions a second, the newest last.
    pub(super) past: VecDeque<u64>,
    /// Why there is nothing new, in a sentence.
    pub(super) trouble: Option<String>,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) sort: Sort,
    pub(super) pane: Pane,
    /// The row in each list.
    pub(super) selected: [usize; 3],
}

/// What a key asks for beyond another view.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ViewAction {
    GoOn,
    Quit,
}

impl View {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            now: None,
            rows: Vec::new(),
            rates: None,
            past: VecDeque::new(),
            trouble: None,
            paused: false,
            help: false,
            sort: Sort::AsConfigured,
            pane: Pane::Policies,
            selected: [0; 3],
        }
    }

    /// What the service said, or why it did not.
    pub(super) fn hear(&mut self, said: Result<Snapshot, String>) {
        match said {
            Err(trouble) => {
                self.trouble = Some(trouble);
                self.rates = None;
            }
            Ok(_) if self.paused => {}
            Ok(snapshot) => {
                self.trouble = None;
                self.take(snapshot);
            }
        }
    }

    fn take(&mut self, snapshot: Snapshot) {
        let status = &snapshot.status;
        // One that was started again has counted less, and has no rate yet.
        let before = self
            .now
            .as_ref()
            .map(|before| &before.status)
            .filter(|before| before.uptime_ms <= status.uptime_ms);
        let elapsed =
            before.map(|before| Duration::from_millis(status.uptime_ms - before.uptime_ms));
        let elapsed = elapsed.filter(|elapsed| !elapsed.is_zero());
        let rate = |now: Pair, before: Option<Pair>| {
            let (before, seconds) = (before?, elapsed?.as_secs_f64());
            let grown = |now: f64, before: f64| (now - before).max(0.0) / seconds;
            Some(Pair {
                passed: grown(now.passed, before.passed),
                denied: grown(now.denied, before.denied),
            })
        };
        self.rates = rate(
            of_totals(&status.totals),
            before.map(|before| of_totals(&before.totals)),
        );
        if let Some(rates) = self.rates {
            self.past.push_back(rates.all().round() as u64);
            if self.past.len() > REMEMBERED {
                self.past.pop_front();
            }
        }
        let known: HashMap<&str, Pair> = self
            .rows
            .iter()
            .map(|row| (&*row.name, row.counts))
            .collect();
        let known = if before.is_some() {
            known
        } else {
            HashMap::new()
        };
        let mut rows = rows(&snapshot);
        for row in &mut rows {
            row.rates = rate(row.counts, known.get(&*row.name).copied());
        }
        self.rows = rows;
        self.now = Some(snapshot);
        self.arrange();
    }

    /// Sorts, and keeps what is selected within the lists.
    fn arrange(&mut self) {
        let counts = |row: &Row| row.rates.unwrap_or(row.counts);
        let by: fn(f64, f64) -> std::cmp::Ordering = |a, b| b.total_cmp(&a);
        match self.sort {
            Sort::AsConfigured => {
                let Some(now) = &self.now else { return };
                let place: HashMap<String, usize> = rows(now)
                    .into_iter()
                    .enumerate()
                    .map(|(at, row)| (row.name, at))
                    .collect();
                self.rows.sort_by_key(|row| place.get(&row.name).copied());
            }
            Sort::Requests => self
                .rows
                .sort_by(|a, b| by(counts(a).all(), counts(b).all())),
            Sort::Denied => self
                .rows
                .sort_by(|a, b| by(counts(a).denied, counts(b).denied)),
            Sort::Usage => self.rows.sort_by(|a, b| {
                by(
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
            Pane::Heaviest => self.keys(pane).len(),
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
            return ViewAction::GoOn;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            // A terminal in raw mode makes no signal of it.
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
                self.arrange();
            }
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Pane::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.go(|at| at.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.go(|at| at.saturating_sub(1)),
            KeyCode::PageDown => self.go(|at| at.saturating_add(10)),
            KeyCode::PageUp => self.go(|at| at.saturating_sub(10)),
            KeyCode::Home => self.go(|_| 0),
            KeyCode::End => self.go(|_| usize::MAX),
            _ => {}
        }
        ViewAction::GoOn
    }

    fn turn(&mut self, by: usize) {
        self.pane = Pane::ALL[(self.pane as usize + by) % Pane::ALL.len()];
    }

    fn go(&mut self, to: impl Fn(usize) -> usize) {
        let last = self.len(self.pane).saturating_sub(1);
        let selected = &mut self.selected[self.pane as usize];
        *selected = to(*selected).min(last);
    }
}

fn of_totals(totals: &Totals) -> Pair {
    Pair {
        passed: totals.allowed as f64,
        denied: totals.denied as f64,
    }
}

/// Policies, and behind them Envoy's rules, under the names that they have on `/metrics`.
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
        counts: Pair {
            passed: (policy.allowed + policy.delayed) as f64,
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
        counts: Pair {
            passed: rule.allowed as f64,
            denied: rule.denied as f64,
        },
        delayed: 0,
        shadow: rule.shadow_denied,
        rates: None,
        keys: None,
        usage: None,
    }
}
