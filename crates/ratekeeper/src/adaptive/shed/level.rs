//! [`LevelController`]: moves the shedding level; pure, with time and traffic as arguments.
//!
//! The level is how much is shed, counted in classes: 0 is nothing, 0.3 is three tenths of the
//! lowest class, 1 all of it, 1.5 half of the next as well. Once per tick it is moved by what the
//! tick measured:
//!
//! - Above a pressure of 1 it goes up, by the traffic in excess at that pressure: fast.
//! - Below the low mark it goes down by a hundredth of the traffic: slowly, and not within the rest
//!   time after it went up.
//! - Between the two it stays.
//!
//! It enters the next class only if the pressure did not fall for some ticks with all of the
//! classes below shed: a backlog that drains is no reason to shed what is more important.

use crate::clock::Timestamp;
use core::time::Duration;

pub(super) const CLASSES: usize = 4;

/// The settings of a [`LevelController`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LevelConfig {
    pub(super) every: Duration,
    pub(super) rest: Duration,
    /// Below this pressure the level goes down.
    pub(super) low: f64,
    /// The highest level.
    pub(super) max_level: f64,
}

/// The minimum and maximum share of the traffic by which one tick raises the level.
const CUT: (f64, f64) = (0.02, 0.8);
/// The share of the admitted traffic that is readmitted per tick, or of all offered traffic if that
/// is more.
const EASE: (f64, f64) = (0.01, 0.001);
/// The minimum and maximum step down, as a share of a class.
const EASE_STEP: (f64, f64) = (0.000_5, 0.05);
/// How many ticks without falling pressure are needed to enter the next class.
const TICKS_BEFORE_NEXT_CLASS: u32 = 3;
/// From this pressure one tick is enough; a pressure just above 1 must last for two, or chance
/// would shed.
const HIGH_PRESSURE: f64 = 1.5;
/// The pressure falls if it is below this share of the one before.
const FALLING: f64 = 0.99;
/// A class with less than this share of the traffic is skipped: to shed it would change nothing.
const NEGLIGIBLE: f64 = 0.01;
/// After this many ticks without traffic the level is back at 0 from wherever it was.
const MAX_TICKS: u64 = 4_000;

#[derive(Clone, Debug)]
pub(super) struct LevelController {
    settings: LevelConfig,
    level: f64,
    /// How many requests of each class come per tick, the lowest class first; half of it is the
    /// last tick.
    offered: [f64; CLASSES],
    pressure: f64,
    /// When the level last went up.
    raised: Option<Timestamp>,
    /// For how many ticks all classes below the level were shed and the pressure did not fall.
    ticks_without_fall: u32,
}

impl LevelController {
    pub(super) fn new(settings: LevelConfig) -> Self {
        Self {
            settings,
            level: 0.0,
            offered: [0.0; CLASSES],
            pressure: 0.0,
            raised: None,
            ticks_without_fall: 0,
        }
    }

    /// The pressure of the last tick.
    pub(super) fn pressure(&self) -> f64 {
        self.pressure
    }

    /// How much of a class is shed at this level, 0 to 1.
    fn shed(level: f64, rank: usize) -> f64 {
        (level - rank as f64).clamp(0.0, 1.0)
    }

    /// How many requests are admitted per tick.
    fn admitted(&self) -> f64 {
        self.offered
            .iter()
            .enumerate()
            .map(|(rank, offered)| offered * (1.0 - Self::shed(self.level, rank)))
            .sum()
    }

    /// The level after `ticks` ticks, in which `offered` requests of each class came, at this
    /// pressure.
    pub(super) fn step(
        &mut self,
        now: Timestamp,
        ticks: u64,
        offered: [u64; CLASSES],
        pressure: f64,
    ) -> f64 {
        for (mean, came) in self.offered.iter_mut().zip(offered) {
            *mean = (*mean + came as f64 / ticks.max(1) as f64) / 2.0;
        }
        let before = core::mem::replace(&mut self.pressure, pressure);
        if pressure > HIGH_PRESSURE || pressure > 1.0 && before > 1.0 {
            self.raise(pressure, pressure < before * FALLING);
            self.raised = Some(now);
        } else if pressure < self.settings.low {
            self.ticks_without_fall = 0;
            let rested = self
                .raised
                .is_none_or(|raised| now.saturating_since(raised) >= self.settings.rest);
            for _ in 0..if rested { ticks.min(MAX_TICKS) } else { 0 } {
                self.ease();
            }
        }
        self.level
    }

    /// Sheds the excess: from the current level up, and no further than to the end of a class that
    /// has traffic.
    fn raise(&mut self, pressure: f64, is_falling: bool) {
        let admitted = self.admitted();
        let mut excess = admitted * (1.0 - 1.0 / pressure).clamp(CUT.0, CUT.1);
        let at_class_end = self.level > 0.0 && self.level.fract() == 0.0;
        if at_class_end && self.has_shed_traffic() {
            self.ticks_without_fall = if is_falling {
                0
            } else {
                self.ticks_without_fall + 1
            };
            if self.ticks_without_fall < TICKS_BEFORE_NEXT_CLASS {
                return;
            }
        }
        self.ticks_without_fall = 0;
        while self.level < self.settings.max_level {
            let rank = self.level as usize;
            let admitted_here = self.offered[rank] * (1.0 - Self::shed(self.level, rank));
            if admitted_here > excess {
                self.level += excess / self.offered[rank];
                break;
            }
            self.level = (rank + 1) as f64;
            excess -= admitted_here;
            if admitted_here > admitted * NEGLIGIBLE {
                break;
            }
        }
        self.level = self.level.min(self.settings.max_level);
    }

    /// Whether a significant share is shed: if not, there is no effect to wait for.
    fn has_shed_traffic(&self) -> bool {
        let shed: f64 = self
            .offered
            .iter()
            .enumerate()
            .map(|(rank, some)| some * Self::shed(self.level, rank))
            .sum();
        shed > self.admitted() * NEGLIGIBLE
    }

    /// Lowers the level a little.
    fn ease(&mut self) {
        if self.level <= 0.0 {
            return;
        }
        let end = self.level as usize;
        let rank = if self.level.fract() == 0.0 {
            end - 1
        } else {
            end
        };
        let all: f64 = self.offered.iter().sum();
        let more = (self.admitted() * EASE.0).max(all * EASE.1);
        let step = if self.offered[rank] > 0.0 {
            more / self.offered[rank]
        } else {
            EASE_STEP.1
        };
        // Stops at the start of each class, so that there is time to see the effect of the whole
        // class.
        self.level = (self.level - step.clamp(EASE_STEP.0, EASE_STEP.1)).max(rank as f64);
    }
}
