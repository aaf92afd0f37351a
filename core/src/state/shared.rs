//! Writing to what may be shared with a snapshot.

use std::sync::Arc;

/// The value behind `shared`, to be changed: copied first where somebody else holds it too.
///
/// [`Arc::make_mut`] for values that nobody holds weakly, with the copying out of the way: nearly always there is none.
#[inline]
pub(crate) fn unshared<T: Clone>(shared: &mut Arc<T>) -> &mut T {
    if Arc::strong_count(shared) > 1 {
        copy(shared);
    }
    Arc::get_mut(shared).expect("held once, and never weakly")
}

#[cold]
#[inline(never)]
fn copy<T: Clone>(shared: &mut Arc<T>) {
    *shared = Arc::new(T::clone(shared));
}
