//! [`Schedule`]: a value that changes in steps over time.

/// A value from the start, and other values from later instants.
#[derive(Clone, Debug)]
pub struct Schedule<T>(Vec<(u64, T)>);

impl<T: Copy> Schedule<T> {
    /// A constant value.
    pub fn always(value: T) -> Self {
        Self(vec![(0, value)])
    }

    /// Changes the value at `at`, in nanoseconds; steps must be added in order.
    #[must_use]
    pub fn then(mut self, at: u64, value: T) -> Self {
        self.0.push((at, value));
        self
    }

    /// The value at `now`.
    pub fn at(&self, now: u64) -> T {
        self.0[self.0.partition_point(|(from, _)| *from <= now).max(1) - 1].1
    }

    /// The same steps with other values.
    pub fn map<U>(self, value: impl Fn(T) -> U) -> Schedule<U> {
        Schedule(
            self.0
                .into_iter()
                .map(|(at, old)| (at, value(old)))
                .collect(),
        )
    }

    /// The next step after `now`.
    pub(crate) fn next_step(&self, now: u64) -> Option<u64> {
        self.steps().find(|at| *at > now)
    }

    /// The times at which it changes.
    pub(crate) fn steps(&self) -> impl Iterator<Item = u64> {
        self.0.iter().skip(1).map(|(at, _)| *at)
    }
}
