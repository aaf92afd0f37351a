//! The filter of a segment: whether its records may mention something, without reading them.
//!
//! A blocked Bloom filter. A mention is a hash of 64 bits; what is hashed and how is up to the caller. Its upper 24
//! bits choose a block of 256 bits, its lower 40 bits one bit in each of the eight parts of the block.
//!
//! While a segment is written, the filter has the size of a full segment, so that memory is bounded and no mention is
//! hashed twice. At the end it is folded: its upper half is laid over the lower one until about ten bits per mention
//! are left. A folded filter is the same as one that had the smaller size from the beginning.

/// Parts of a block. Each mention sets one bit in each.
const PARTS: usize = 8;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: u64 = PARTS as u64 * 4;

/// The most blocks that a hash can address.
pub(super) const BLOCKS_MAX: u64 = 1 << 24;

/// The least bits per mention that a filter is folded to: about one false answer in a hundred.
const MENTION_BITS: u64 = 10;

/// The least bits per mention of a filter that is worth its space: about one false answer in five.
const MENTION_BITS_LEAST: u64 = 4;

/// The bits of a hash that choose a bit in a part.
const BIT_BITS: u32 = 5;

/// The bits of a hash below those that choose the block.
const BLOCK_SHIFT: u32 = BIT_BITS * PARTS as u32;

/// A set of mentions that may contain more than was inserted, and never less.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MentionFilter {
    /// None, or a power of two of them. Without any, the filter contains nothing.
    blocks: Vec<[u32; PARTS]>,
    mentions: u64,
}

impl MentionFilter {
    /// An empty filter of at most `bytes`, and at least one block.
    #[must_use]
    pub fn with_bytes(bytes: u64) -> Self {
        let blocks = (bytes / BLOCK_BYTES).clamp(1, BLOCKS_MAX);
        Self { blocks: vec![[0; PARTS]; 1 << blocks.ilog2()], mentions: 0 }
    }

    /// The number of different mentions that were inserted, those left out that the filter seemed to contain already.
    #[must_use]
    pub fn mentions(&self) -> u64 {
        self.mentions
    }

    /// The size of the filter in bits.
    #[must_use]
    pub fn bits(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES * 8
    }

    /// Inserts a mention.
    ///
    /// # Panics
    /// If the filter has no block.
    #[inline]
    pub fn insert(&mut self, mention: u64) {
        let at = self.block_of(mention);
        let mut is_new = false;
        for (part, bit) in self.blocks[at].iter_mut().zip(bits_of(mention)) {
            is_new |= *part & bit == 0;
            *part |= bit;
        }
        self.mentions += u64::from(is_new);
    }

    /// Whether the mention may have been inserted. If not, it was not.
    #[must_use]
    pub fn may_contain(&self, mention: u64) -> bool {
        let has_bits = |block: &[u32; PARTS]| block.iter().zip(bits_of(mention)).all(|(part, bit)| part & bit != 0);
        self.blocks.get(self.block_of(mention)).is_some_and(has_bits)
    }

    fn block_of(&self, mention: u64) -> usize {
        (mention >> BLOCK_SHIFT) as usize & self.blocks.len().saturating_sub(1)
    }

    /// The number of blocks that it should be folded to once it has so many mentions.
    pub(super) fn blocks_wanted(&self, mentions: u64) -> u64 {
        self.blocks_for(mentions, MENTION_BITS)
    }

    /// The least number of blocks that it may be folded to.
    pub(super) fn blocks_least(&self) -> u64 {
        self.blocks_for(self.mentions, MENTION_BITS_LEAST)
    }

    fn blocks_for(&self, mentions: u64, mention_bits: u64) -> u64 {
        match mentions {
            0 => 0,
            mentions => (mentions * mention_bits).div_ceil(BLOCK_BYTES * 8).next_power_of_two(),
        }
        .min(self.blocks.len() as u64)
    }

    /// The same mentions in fewer blocks: none if nothing was inserted, else a power of two. Contains everything that
    /// this filter does.
    pub(super) fn folded(&self, blocks: u64) -> Self {
        let mut folded = vec![[0; PARTS]; blocks as usize];
        for part in self.blocks.chunks(folded.len().max(1)) {
            for (into, from) in folded.iter_mut().zip(part) {
                into.iter_mut().zip(from).for_each(|(into, from)| *into |= from);
            }
        }
        Self { blocks: folded, mentions: self.mentions }
    }

    /// Its blocks, as they stand in a file.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.blocks.len() * BLOCK_BYTES as usize);
        self.blocks.iter().flatten().for_each(|part| out.extend_from_slice(&part.to_le_bytes()));
    }

    /// A filter of these blocks; `None` if there is no such filter.
    pub(super) fn decode(mentions: u64, bytes: &[u8]) -> Option<Self> {
        let (parts, rest) = bytes.as_chunks();
        let parts: Vec<u32> = parts.iter().map(|part| u32::from_le_bytes(*part)).collect();
        let (blocks, partial) = parts.as_chunks();
        let is_whole = rest.is_empty() && partial.is_empty();
        let is_sized = blocks.is_empty() || blocks.len().is_power_of_two() && blocks.len() as u64 <= BLOCKS_MAX;
        (is_whole && is_sized && (mentions == 0) == blocks.is_empty())
            .then(|| Self { blocks: blocks.to_vec(), mentions })
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }
}

/// The bit of each part.
#[inline]
fn bits_of(mention: u64) -> impl Iterator<Item = u32> {
    (0..PARTS as u32).map(move |part| 1 << ((mention >> (BIT_BITS * part)) & 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spreads numbers over all bits.
    fn hash(number: u64) -> u64 {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ (mixed >> 31)
    }

    fn filled(bytes: u64, mentions: u64) -> MentionFilter {
        let mut filter = MentionFilter::with_bytes(bytes);
        (0..mentions).for_each(|number| filter.insert(hash(number)));
        filter
    }

    #[test]
    fn filter_has_no_false_negative_and_few_false_positives_after_folding() {
        for mentions in [1, 20, 26, 1_000, 10_000, 50_000] {
            let filter = filled(1 << 18, mentions);
            let folded = filter.folded(filter.blocks_wanted(filter.mentions()));
            assert!((0..mentions).all(|number| folded.may_contain(hash(number))), "{mentions}");
            let bits = folded.bits() as f64 / mentions as f64;
            assert!(bits >= 10.0 && (bits < 20.1 || folded.blocks() == 1), "{mentions}: {bits} bits per mention");
            let asked = 200_000;
            let wrong = (0..asked).filter(|number| folded.may_contain(hash(mentions + number))).count();
            println!("{mentions} mentions, {bits:.1} bits each: {wrong} of {asked} answers are false positives");
            assert!(wrong < asked as usize / 50, "{mentions}: {wrong}");
        }
    }

    #[test]
    fn folded_filter_equals_one_of_the_smaller_size() {
        let large = filled(1 << 14, 300);
        let small = filled(1 << 10, 300);
        let folded = large.folded(small.blocks());
        assert_eq!(folded.blocks, small.blocks);
    }

    #[test]
    fn empty_filter_contains_nothing() {
        let filter = MentionFilter::with_bytes(0);
        assert_eq!((filter.blocks(), filter.blocks_wanted(filter.mentions()), filter.blocks_least()), (1, 0, 0));
        assert!(!filter.may_contain(0) && !filter.folded(0).may_contain(hash(1)));
        assert_eq!(MentionFilter::decode(0, &[]), Some(filter.folded(0)));
    }

    #[test]
    fn only_whole_blocks_decode() {
        let filter = filled(64, 3);
        let mut bytes = Vec::new();
        filter.encode(&mut bytes);
        assert_eq!(MentionFilter::decode(3, &bytes), Some(filter));
        for bad in [&bytes[..63], &bytes[..60], &[0; 96][..], &[]] {
            assert_eq!(MentionFilter::decode(3, bad), None);
        }
        assert_eq!(MentionFilter::decode(0, &bytes), None);
    }
}
