//! Copy-on-write access to an [`Arc`].

use std::sync::Arc;

/// Mutable access to the value of `shared`, which is copied first if a snapshot shares it.
///
/// [`Arc::make_mut`] without weak references and with the copy out of line, since it is rare.
#[inline]
pub(crate) fn unshared<T: Clone>(shared: &mut Arc<T>) -> &mut T {
    if Arc::strong_count(shared) > 1 {
        copy(shared);
    }
    Arc::get_mut(shared).expect("there is one strong reference and no weak one")
}

#[cold]
#[inline(never)]
fn copy<T: Clone>(shared: &mut Arc<T>) {
    *shared = Arc::new(T::clone(shared));
}
