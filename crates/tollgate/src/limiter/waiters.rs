//! Who waits: a list of whom to wake, and the lines of those whose algorithm knows no slots.

use core::task::Waker;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Who waits, to be woken when the limiter is closed.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Written under the lock of the list, read without it by those who do not have to wait.
    closed: AtomicBool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    seats: Vec<Option<Waker>>,
    free: Vec<usize>,
    /// Those whose algorithm knows no slots, in the order they came.
    /// Each in the line of its key.
    line: VecDeque<(u64, usize)>,
}

impl List {
    /// Who is first in a line.
    fn first_of(&self, line: u64) -> Option<usize> {
        self.line.iter().find(|(of, _)| *of == line).map(|(_, seat)| *seat)
    }

    fn seat(&mut self, seat: &mut Seat) -> usize {
        *seat.0.get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                self.seats.push(None);
                self.seats.len() - 1
            })
        })
    }
}

/// A waiter's place in the list; none while it is not in it.
#[derive(Default)]
pub(super) struct Seat(Option<usize>);

impl Waiters {
    /// Takes a seat, or keeps the one it has; false if the limiter is closed.
    pub(super) fn sit(&self, seat: &mut Seat, waker: &Waker) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let at = list.seat(seat);
        match &mut list.seats[at] {
            Some(known) if known.will_wake(waker) => {}
            place => *place = Some(waker.clone()),
        }
        true
    }

    /// Takes a seat at the end of the line; false if the limiter is closed.
    pub(super) fn queue_up(&self, seat: &mut Seat, line: u64) -> bool {
        let mut list = self.lock();
        if self.is_closed() {
            return false;
        }
        let at = list.seat(seat);
        list.line.push_back((line, at));
        true
    }

    pub(super) fn is_first(&self, seat: &Seat, line: u64) -> bool {
        self.lock().first_of(line) == seat.0
    }

    pub(super) fn nobody_in_line(&self, line: u64) -> bool {
        self.lock().first_of(line).is_none()
    }

    /// Leaves the seat, and the line; if that moves the line on, its new first is woken.
    pub(super) fn leave(&self, seat: &mut Seat) {
        let Some(at) = seat.0.take() else { return };
        let next = {
            let mut list = self.lock();
            list.seats[at] = None;
            list.free.push(at);
            let line = list.line.iter().find(|(_, waiting)| *waiting == at).map(|(line, _)| *line);
            let was_first = line.is_some_and(|line| list.first_of(line) == Some(at));
            list.line.retain(|(_, waiting)| *waiting != at);
            let first = line.filter(|_| was_first).and_then(|line| list.first_of(line));
            first.and_then(|first| list.seats[first].clone())
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }

    pub(crate) fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut list = self.lock();
            self.closed.store(true, Ordering::Release);
            list.seats.iter_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waker that unparks the calling thread.
pub(crate) fn thread_waker() -> Waker {
    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    Waker::from(Arc::new(Unpark(std::thread::current())))
}
