//! The live view: a terminal, keys and signals. However it ends, the terminal is as it was.

use super::view::{View, ViewAction};
use super::{Snapshot, draw, fetched};
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

/// An answer that is waited for.
type Look<'a> = Pin<Box<dyn Future<Output = Result<Snapshot, String>> + 'a>>;

/// Draws until somebody wants no more.
pub(super) async fn run(client: &Client, every: Duration) -> Result<(), String> {
    let wrong = |error: io::Error| {
        format!("the terminal cannot be used: {error}; --once prints it as text")
    };
    let mut stop = Stop::new().map_err(wrong)?;
    // From here on a panic restores the terminal too.
    let mut terminal = ratatui::try_init().map_err(wrong)?;
    let _restored = TerminalGuard;
    let mut keys = keys();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View::new(client.url());
    // One look at a time, which goes on while keys are pressed.
    let mut look: Option<Look<'_>> = None;
    loop {
        terminal
            .draw(|frame| draw::draw(&view, frame))
            .map_err(wrong)?;
        tokio::select! {
            () = stop.asked() => return Ok(()),
            event = keys.recv() => match event {
                Some(Event::Key(key)) if view.press(key) == ViewAction::Quit => return Ok(()),
                // Another size is seen when it is drawn.
                Some(_) => {}
                None => return Ok(()),
            },
            _ = ticks.tick(), if look.is_none() => look = Some(Box::pin(fetched(client))),
            said = async {
                match &mut look {
                    Some(look) => look.as_mut().await,
                    None => pending().await,
                }
            } => {
                look = None;
                view.hear(said);
            }
        }
    }
}

/// Gives the terminal back.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What is typed, and other sizes. The thread waits for the next of them until the process ends.
fn keys() -> mpsc::Receiver<Event> {
    let (tell, told) = mpsc::channel(16);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if tell.blocking_send(event).is_err() {
                return;
            }
        }
    });
    told
}

/// The signals that end it.
struct Stop([Signal; 3]);

impl Stop {
    fn new() -> io::Result<Self> {
        let [terminate, interrupt, hang_up] = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal);
        Ok(Self([terminate?, interrupt?, hang_up?]))
    }

    async fn asked(&mut self) {
        let [terminate, interrupt, hang_up] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}
