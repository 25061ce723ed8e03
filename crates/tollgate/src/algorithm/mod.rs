//! The algorithms as pure state machines, one a file: state in, state out, time is an argument, integers only.
//!
//! The token bucket and pacing count in ticks of the limit's normal form. The others count events in windows of
//! nanoseconds since the Unix epoch; what they have in common is here.

pub(crate) mod fixed_window;
pub(crate) mod pacing;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod sliding_window_strict;
pub(crate) mod token_bucket;

/// So many in each window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Windowed {
    /// N.
    pub(crate) most: u64,
    /// W, in nanoseconds, more than zero.
    pub(crate) window: u64,
    /// Bits that a packed state gives to each of its counts; 0 if the numbers do not fit one word.
    pub(crate) shift: u32,
}

impl Windowed {
    /// The bits for each of so many counts beside the number of a window, in 63 bits; 0 if they do not fit.
    pub(crate) const fn shift_for(&self, counts: u32) -> u32 {
        // Windows are numbered until the year 2262.
        let index = match (i64::MAX as u64 / self.window).checked_ilog2() {
            Some(bits) => bits + 1,
            None => 1,
        };
        let count = match self.most.checked_ilog2() {
            Some(bits) => bits + 1,
            None => 1,
        };
        let room = (63 - index) / counts;
        if count <= room { room } else { 0 }
    }
}

/// What became of a call, and the figures its caller may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judged<S> {
    /// Admitted: the state that it leaves.
    Admit(S, Told),
    /// Not admitted, nothing changes: it would be at `retry_at`.
    Deny { told: Told, retry_at: u64 },
    /// No time will admit it.
    Never(Told),
}

impl<S> Judged<S> {
    /// The same judgement with the figures of the state before it, which `asking` for nothing tells.
    pub(crate) fn unwritten(self, asking: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Admit(..) => asking(),
            other => other,
        }
    }
}

/// The figures after a call, times as instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) remaining: u64,
    pub(crate) reset_at: u64,
}

/// A machine whose state is a few words.
pub(crate) trait Machine: Copy + Default {
    /// The state as up to twelve words.
    fn from_words(word: impl Fn(usize) -> u64) -> Self;
    fn to_words(self, word: impl FnMut(usize, u64));

    /// The whole state in one word below `u64::MAX`, where the limit has a shift.
    fn pack(self, limit: &Windowed) -> u64;
    fn unpack(limit: &Windowed, word: u64) -> Self;

    /// One call of `cost` at `now`.
    fn step(self, limit: &Windowed, now: u64, cost: u64) -> Judged<Self>;

    /// What names the window that a call at `now` is charged in.
    fn charged_in(self) -> u64;

    /// Gives back `unused` of what was charged in a window, if that is still counted.
    fn give_back(self, limit: &Windowed, now: u64, charged_in: u64, unused: u64) -> Self;

    /// Charges `extra` now; the window is full at most.
    fn charge_more(self, limit: &Windowed, now: u64, extra: u64) -> Self;

    /// A state that is as strict as both, at every instant.
    #[cfg_attr(not(feature = "std"), expect(dead_code))]
    fn join(self, limit: &Windowed, other: Self) -> Self;
}
