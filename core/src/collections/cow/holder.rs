//! Who holds the chunks of a map: all of its clones together, or the map alone.

use std::ops::Deref;
use std::sync::Arc;

use super::Chunk;
use crate::collections::shared::unshared;

/// Holds a chunk.
pub(crate) trait Holder<K, V>: Deref<Target = Chunk<K, V>> {
    /// The only holder of this chunk.
    fn hold(chunk: Chunk<K, V>) -> Self;

    /// The chunk, to be written to. It is copied first if another holder shares it.
    fn write(&mut self) -> &mut Chunk<K, V>;

    /// The chunk. It is copied if another holder shares it.
    fn take(self) -> Chunk<K, V>;
}

impl<K: Clone, V: Clone> Holder<K, V> for Arc<Chunk<K, V>> {
    fn hold(chunk: Chunk<K, V>) -> Self {
        Self::new(chunk)
    }

    #[inline]
    fn write(&mut self) -> &mut Chunk<K, V> {
        unshared(self)
    }

    fn take(self) -> Chunk<K, V> {
        Self::unwrap_or_clone(self)
    }
}

/// The only holder of a chunk.
#[derive(Clone)]
pub(crate) struct Own<K, V>(Chunk<K, V>);

impl<K, V> Deref for Own<K, V> {
    type Target = Chunk<K, V>;

    #[inline]
    fn deref(&self) -> &Chunk<K, V> {
        &self.0
    }
}

impl<K, V> Holder<K, V> for Own<K, V> {
    fn hold(chunk: Chunk<K, V>) -> Self {
        Self(chunk)
    }

    #[inline]
    fn write(&mut self) -> &mut Chunk<K, V> {
        &mut self.0
    }

    fn take(self) -> Chunk<K, V> {
        self.0
    }
}
