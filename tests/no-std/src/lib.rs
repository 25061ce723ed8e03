//! A program without std that limits: it brings its own allocator and panic handler, which std
//! would not allow.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use ratekeeper::{Limit, Limiter, ManualClock};

struct Bump;

const HEAP: usize = 64 * 1024;
static mut ARENA: [u8; HEAP] = [0; HEAP];
static USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call returns a part of the arena that no other call returns; nothing is ever freed.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = &raw mut ARENA as usize;
        let mut at = 0;
        let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            at = (start + used).next_multiple_of(layout.align()) - start;
            (at + layout.size() <= HEAP).then_some(at + layout.size())
        });
        match taken {
            Ok(_) => (start + at) as *mut u8,
            Err(_) => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// How many of `calls` pass a limit of 10 a second, twice, a second apart.
#[unsafe(no_mangle)]
pub extern "C" fn admitted(calls: u32) -> u32 {
    let clock = ManualClock::new();
    let limiter = Limiter::with_clock(Limit::per_second(10), clock.clone());
    let pass = || (0..calls).filter(|_| limiter.check().is_allowed()).count() as u32;
    let first = pass();
    limiter.set_limit(Limit::per_second(5).burst(10));
    clock.advance(Duration::from_secs(1));
    if let Ok(slot) = limiter.reserve(1) {
        slot.cancel();
    }
    first + pass()
}
