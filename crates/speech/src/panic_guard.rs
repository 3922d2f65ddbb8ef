//! Turns panics of third-party decoders into errors, without printing the message.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread runs a guarded decoder.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder on untrusted bytes; `None` if it panics.
///
/// After a panic the decoder must not be used again. The first call wraps the panic hook of the
/// process, so that it is not called for panics of guarded decoders.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    // An unwinding thread may not change the hook.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let previous_hook = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !IS_GUARDED.get() {
                    previous_hook(info);
                }
            }));
        });
    }
    let was_guarded = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was_guarded);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_none_and_the_next_call_works() {
        assert_eq!(catch_panic(|| -> u32 { panic!("not to be printed") }), None);
        assert_eq!(
            catch_panic(|| catch_panic(|| -> u32 { panic!("not to be printed") }).is_none()),
            Some(true)
        );
        assert_eq!(catch_panic(|| 7), Some(7));
        assert!(!IS_GUARDED.get());
    }
}
