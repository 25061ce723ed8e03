//! The live view: terminal, keys and signals. The terminal is always restored.

use super::view::{View, ViewAction};
use super::{Snapshot, draw, fetch};
use crate::commands::admin_client::Client;
use ratatui::crossterm::event::{self, Event};
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// A request in flight.
type Fetch<'a> = Pin<Box<dyn Future<Output = Result<Snapshot, String>> + 'a>>;

/// Draws until the user quits or a signal arrives.
pub(super) async fn run(client: &Client, update_interval: Duration) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!("cannot use the terminal: {error}; use --once to print the statistics as text")
    };
    let mut stop = StopSignals::new().map_err(failed)?;
    // From here on a panic restores the terminal too.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let _guard = TerminalGuard;
    let mut keys = keys();
    let mut ticks = interval(update_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View::new(client.url());
    // One request at a time, which goes on while keys are pressed.
    let mut request: Option<Fetch<'_>> = None;
    loop {
        terminal
            .draw(|frame| draw::draw(&view, frame))
            .map_err(failed)?;
        tokio::select! {
            () = stop.recv() => return Ok(()),
            event = keys.recv() => match event {
                Some(Event::Key(key)) if view.press(key) == ViewAction::Quit => return Ok(()),
                // A new size takes effect when the view is drawn.
                Some(_) => {}
                None => return Ok(()),
            },
            _ = ticks.tick(), if request.is_none() => request = Some(Box::pin(fetch(client))),
            result = async {
                match &mut request {
                    Some(request) => request.as_mut().await,
                    None => pending().await,
                }
            } => {
                request = None;
                view.update(result);
            }
        }
    }
}

/// Restores the terminal when dropped.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Key and resize events, read by a thread that runs until the process ends.
fn keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The signals that end the view.
struct StopSignals([Signal; 3]);

impl StopSignals {
    fn new() -> io::Result<Self> {
        let [terminate, interrupt, hang_up] = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal);
        Ok(Self([terminate?, interrupt?, hang_up?]))
    }

    async fn recv(&mut self) {
        let [terminate, interrupt, hang_up] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}
