//! `PackedState`: a breaker's state, failure streak, generation and end of its open time in one
//! atomic word.

/// Milliseconds since the breaker was made, in 40 bits: 34 years.
pub(super) const MS_BITS: u32 = 40;
pub(super) const MS_MAX: u64 = (1 << MS_BITS) - 1;
const STREAK_BITS: u32 = 5;
const STREAK_MAX: u8 = (1 << STREAK_BITS) - 1;

/// The stored state. An `Open` breaker whose time is over becomes half-open with the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Closed,
    Open,
    HalfOpen,
    ForcedOpen,
    ForcedClosed,
    MetricsOnly,
}

const KINDS: [Kind; 6] = [
    Kind::Closed,
    Kind::Open,
    Kind::HalfOpen,
    Kind::ForcedOpen,
    Kind::ForcedClosed,
    Kind::MetricsOnly,
];

/// From the low end: until (40 bits), generation (16), streak (5), kind (3).
///
/// The generation increases with every change of state. Calls that were allowed in one generation
/// do not affect another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PackedState(u64);

impl PackedState {
    /// The initial state: closed.
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn kind(self) -> Kind {
        KINDS[(self.0 >> 61) as usize % KINDS.len()]
    }

    /// How many times in a row half-open was followed by open.
    pub(super) fn streak(self) -> u8 {
        (self.0 >> 56) as u8 & STREAK_MAX
    }

    pub(super) fn generation(self) -> u16 {
        (self.0 >> MS_BITS) as u16
    }

    /// The end of the open time; meaningless in other states.
    pub(super) fn until(self) -> u64 {
        self.0 & MS_MAX
    }

    /// The next state, one generation later.
    pub(super) fn to(self, kind: Kind) -> Self {
        Self::new(kind, 0, self.generation().wrapping_add(1), 0)
    }

    /// Changes to open, until `until`.
    pub(super) fn to_open(self, streak: u8, until: u64) -> Self {
        Self::new(
            Kind::Open,
            streak.min(STREAK_MAX),
            self.generation().wrapping_add(1),
            until.min(MS_MAX),
        )
    }

    /// Changes to half-open, keeping the streak.
    pub(super) fn to_half_open(self) -> Self {
        Self::new(
            Kind::HalfOpen,
            self.streak(),
            self.generation().wrapping_add(1),
            0,
        )
    }

    fn new(kind: Kind, streak: u8, generation: u16, until: u64) -> Self {
        Self(
            (kind as u64) << 61
                | u64::from(streak) << 56
                | u64::from(generation) << MS_BITS
                | until,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_and_unpacking_a_word_round_trips() {
        for kind in KINDS {
            assert_eq!(PackedState::FIRST.to(kind).kind(), kind);
        }
        let open = PackedState::FIRST.to_open(7, 123_456);
        assert_eq!(
            (open.kind(), open.streak(), open.generation(), open.until()),
            (Kind::Open, 7, 1, 123_456)
        );
        let half = open.to_half_open();
        assert_eq!(
            (half.kind(), half.streak(), half.generation()),
            (Kind::HalfOpen, 7, 2)
        );
        let farthest = half.to_open(u8::MAX, u64::MAX);
        assert_eq!(
            (farthest.kind(), farthest.streak(), farthest.generation()),
            (Kind::Open, STREAK_MAX, 3)
        );
        assert_eq!(farthest.until(), MS_MAX);
        assert_eq!(farthest.to(Kind::Closed).streak(), 0);
    }

    #[test]
    fn the_generation_wraps_without_touching_its_neighbours() {
        let mut word = PackedState::FIRST;
        for _ in 0..=u16::MAX {
            word = word.to(Kind::MetricsOnly);
        }
        assert_eq!(
            (word.kind(), word.streak(), word.generation(), word.until()),
            (Kind::MetricsOnly, 0, 0, 0)
        );
    }
}
