//! Those who wait for a permit of an adaptive limit.
//!
//! A permit is handed to the one whose turn it is, under the lock, before it is woken: nobody is woken for nothing, and
//! nobody passes those who wait. Whoever gives a permit back looks at the line afterwards, and whoever joins the line looks
//! at the permits afterwards: of any two one sees the other.

use super::Queue;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tollgate::adaptive::Partition;
use tollgate::{AdaptiveConcurrency, AdaptivePermit, Class, Clock, Instant};

pub(super) struct Line<C: Clock> {
    pub(super) gate: AdaptiveConcurrency<C>,
    queue: Queue,
    /// How many wait: written under the lock, read without it by those who would not wait.
    length: AtomicUsize,
    places: Mutex<Places<C>>,
    pub(super) clock: C,
}

/// Whose permit it is: of which partition, and how important. None of the two says that nobody said.
#[derive(Clone, Copy, PartialEq, Default)]
pub(super) struct Who {
    pub(super) partition: Option<Partition>,
    pub(super) class: Option<Class>,
}

struct Places<C: Clock> {
    /// The first that came in front.
    waiting: VecDeque<Waiting>,
    /// Served, and not yet fetched.
    granted: Vec<(u64, AdaptivePermit<C>)>,
    next: u64,
    /// When the line was last seen empty.
    empty: Instant,
}

struct Waiting {
    place: u64,
    who: Who,
    /// None until it is first polled.
    waker: Option<Waker>,
}

impl<C: Clock> Line<C> {
    pub(super) fn new(gate: AdaptiveConcurrency<C>, queue: Queue, clock: C) -> Self {
        let places = Places { waiting: VecDeque::new(), granted: Vec::new(), next: 0, empty: clock.now() };
        Self { gate, queue, length: AtomicUsize::new(0), places: Mutex::new(places), clock }
    }

    pub(super) fn length(&self) -> usize {
        self.length.load(SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length() == 0
    }

    /// Joins the line; says which place that is and until when one may wait. None if the line is full.
    pub(super) fn join(&self, who: Who) -> Option<(u64, Instant)> {
        let now = self.clock.now();
        let joined = {
            let mut places = self.lock();
            if places.waiting.is_empty() {
                places.empty = now;
            }
            if places.waiting.len() >= self.queue.most {
                return None;
            }
            let place = places.next;
            places.next += 1;
            places.waiting.push_back(Waiting { place, who, waker: None });
            self.length.store(places.waiting.len(), SeqCst);
            (place, now + self.queue.longest(places.empty, now))
        };
        self.serve();
        Some(joined)
    }

    /// The permit, if its turn has come; else `waker` is woken when it does.
    pub(super) fn look(&self, place: u64, waker: &Waker) -> Option<AdaptivePermit<C>> {
        let mut places = self.lock();
        let granted = places.fetch(place);
        if granted.is_none()
            && let Some(waiting) = places.waiting.iter_mut().find(|waiting| waiting.place == place)
        {
            match &mut waiting.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        granted
    }

    /// Leaves the line, with the permit if its turn had come.
    pub(super) fn leave(&self, place: u64) -> Option<AdaptivePermit<C>> {
        let mut places = self.lock();
        if let Some(at) = places.waiting.iter().position(|waiting| waiting.place == place) {
            places.waiting.remove(at);
            self.length.store(places.waiting.len(), SeqCst);
        }
        places.fetch(place)
    }

    /// Serves the line as far as there are permits for it: from its front, or where it is a backlog from its end.
    pub(super) fn serve(&self) {
        while !self.is_empty() {
            let mut places = self.lock();
            let newest_first = self.queue.is_backlog(places.empty, self.clock.now());
            let Some((at, permit)) = self.first_served(&places, newest_first) else { return };
            let Some(served) = places.waiting.remove(at) else { return };
            places.granted.push((served.place, permit));
            self.length.store(places.waiting.len(), SeqCst);
            drop(places);
            if let Some(waker) = served.waker {
                waker.wake();
            }
        }
    }

    /// The one whose turn it is, and its permit: of the first whose partition and class have one.
    fn first_served(&self, places: &Places<C>, newest_first: bool) -> Option<(usize, AdaptivePermit<C>)> {
        let mut without: Vec<Who> = Vec::new();
        let many = places.waiting.len();
        for nth in 0..many {
            let at = if newest_first { many - 1 - nth } else { nth };
            let who = places.waiting[at].who;
            if without.contains(&who) {
                continue;
            }
            match acquire(&self.gate, who) {
                Ok(permit) => return Some((at, permit)),
                Err(_) if self.gate.in_flight() >= self.gate.limit() => return None,
                Err(_) => without.push(who),
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Places<C>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn acquire<C: Clock>(
    gate: &AdaptiveConcurrency<C>,
    Who { partition, class }: Who,
) -> Result<AdaptivePermit<C>, tollgate::AtCapacity> {
    // Whoever says nothing has all of the limit.
    gate.try_acquire_as(class.unwrap_or(Class::CriticalPlus), partition)
}

impl<C: Clock> Places<C> {
    fn fetch(&mut self, place: u64) -> Option<AdaptivePermit<C>> {
        let at = self.granted.iter().position(|(granted, _)| *granted == place)?;
        Some(self.granted.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests;
