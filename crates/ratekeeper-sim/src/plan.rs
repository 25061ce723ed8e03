//! What changes in steps as time goes by.

/// A value from the beginning on, and others from later instants on.
#[derive(Clone, Debug)]
pub struct Plan<T>(Vec<(u64, T)>);

impl<T: Copy> Plan<T> {
    /// The same for ever.
    pub fn always(value: T) -> Self {
        Self(vec![(0, value)])
    }

    /// Another value from `at` on, in nanoseconds; steps are told in order.
    #[must_use]
    pub fn then(mut self, at: u64, value: T) -> Self {
        self.0.push((at, value));
        self
    }

    /// The value that holds at `now`.
    pub fn at(&self, now: u64) -> T {
        self.0[self.0.partition_point(|(from, _)| *from <= now).max(1) - 1].1
    }

    /// The same steps with other values.
    pub fn map<U>(self, value: impl Fn(T) -> U) -> Plan<U> {
        Plan(
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

    /// When it changes.
    pub(crate) fn steps(&self) -> impl Iterator<Item = u64> {
        self.0.iter().skip(1).map(|(at, _)| *at)
    }
}
