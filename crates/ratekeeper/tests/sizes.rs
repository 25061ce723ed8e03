//! Sizes of public types. (The shared part of a limiter, 128 bytes, is asserted beside its
//! definition.)

use ratekeeper::{Charge, Decision, Limit, Limiter, Reservation, keyed::ChargeToken};

#[test]
fn the_types_that_callers_hold_are_small() {
    assert_eq!(size_of::<Limiter>(), 8);
    assert!(size_of::<Decision>() <= 48);
    assert!(size_of::<Reservation>() <= 48);
    assert!(size_of::<Charge>() <= 64);
    assert!(size_of::<ChargeToken>() <= 64);
    assert!(size_of::<Limit>() <= 64);
}
