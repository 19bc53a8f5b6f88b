//! What the allocator promises, one promise a test.

use forebay_base::ByteRange;
use forebay_memory::allocator::{BlockSnapshot, BlockState};
use forebay_memory::{Allocator, AllocatorError, Block, BlockId, Holder, PoolId, SegmentId, TileMove, TileRange};

const A: PoolId = PoolId(0);
const B: PoolId = PoolId(1);

fn place(block: Option<Block>) -> Option<(u32, u64, u64)> {
    block.map(|block| (block.segment.0, block.offset_bytes, block.size_bytes))
}

#[test]
fn sizes_are_rounded_and_nonsense_is_refused() {
    let mut allocator = Allocator::new(256);
    assert_eq!(allocator.allocate(A, 1, "a"), None);
    allocator.add_segment(1000);
    assert_eq!(allocator.statistics().reserved_bytes, 768);
    assert_eq!(place(allocator.allocate(A, 0, "a")), Some((0, 0, 256)));
    assert_eq!(place(allocator.allocate(A, 257, "a")), Some((0, 256, 512)));
    assert_eq!(allocator.allocate(A, 0, "a"), None);
    assert_eq!(allocator.allocate(A, u64::MAX, "a"), None);
    assert_eq!(allocator.growth_bytes(A, u64::MAX), None);
    assert_eq!(allocator.growth_bytes(A, 257), Some(512));
    allocator.add_segment(u64::MAX);
    assert_eq!(allocator.statistics().reserved_bytes, u64::MAX - 255);
    let none_left = allocator.add_segment(u64::MAX);
    assert_eq!(allocator.take_empty_segments(), [SegmentId(1), none_left]);
    for alignment_bytes in [0, 3, u64::MAX] {
        let mut allocator = Allocator::new(alignment_bytes);
        allocator.add_segment(1 << 63);
        assert!(allocator.allocate(A, 1, "a").is_some());
    }
}

#[test]
fn the_smallest_sufficient_block_is_taken() {
    let mut allocator = Allocator::new(1);
    for size in [100, 60, 60, 80] {
        allocator.add_segment(size);
    }
    // The latest among equals.
    assert_eq!(place(allocator.allocate(A, 50, "a")), Some((2, 0, 50)));
    assert_eq!(place(allocator.allocate(A, 10, "a")), Some((2, 50, 10)));
    assert_eq!(place(allocator.allocate(A, 60, "a")), Some((1, 0, 60)));
    assert_eq!(place(allocator.allocate(A, 81, "a")), Some((0, 0, 81)));
}

#[test]
fn what_is_large_enough_is_found_behind_many_that_are_not() {
    let mut allocator = Allocator::new(1);
    // The latest are looked at first; all share their first seven bits.
    allocator.add_segment(4_110);
    let smaller = [(); 40].map(|()| allocator.add_segment(4_100));
    assert_eq!(smaller.last(), Some(&SegmentId(40)));
    assert_eq!(allocator.growth_bytes(A, 4_105), Some(0));
    assert_eq!(place(allocator.allocate(A, 4_105, "a")), Some((0, 0, 4_105)));
    assert_eq!(allocator.growth_bytes(A, 4_105), Some(4_105));
    allocator.add_segment(10_000);
    assert_eq!(place(allocator.allocate(A, 4_105, "a")), Some((41, 0, 4_105)));
}

#[test]
fn freed_blocks_stay_in_their_pool_until_it_is_shared() {
    let mut allocator = Allocator::new(1);
    allocator.add_segment(100);
    let block = allocator.allocate(A, 100, "a").unwrap();
    allocator.free(block.id).unwrap();
    assert_eq!((allocator.free_bytes(A), allocator.free_bytes(B)), (100, 0));
    assert_eq!(allocator.allocate(B, 1, "b"), None);
    assert!(allocator.take_empty_segments().is_empty());
    allocator.share(A);
    assert_eq!(allocator.free_bytes(A), 0);
    assert_eq!(place(allocator.allocate(B, 1, "b")), Some((0, 0, 1)));
}

#[test]
fn a_run_of_own_and_shared_blocks_serves_what_neither_could() {
    let mut allocator = Allocator::new(1);
    allocator.add_segment(100);
    let blocks = [10, 20, 30, 20].map(|size| allocator.allocate(A, size, "a").unwrap());
    allocator.free(blocks[1].id).unwrap();
    allocator.share(A);
    allocator.free(blocks[2].id).unwrap();
    // 10 live, 20 shared, 30 of A, 20 live, 20 shared.
    assert_eq!(allocator.allocate(B, 50, "b"), None);
    assert_eq!(allocator.growth_bytes(A, 45), Some(0));
    assert_eq!(place(allocator.allocate(A, 45, "a")), Some((0, 10, 45)));
    assert_eq!(allocator.free_bytes(A), 5);
}

/// This takes very long if the run is followed from each of its blocks.
#[test]
fn a_long_run_is_followed_once() {
    let mut allocator = Allocator::new(1);
    allocator.add_segment(400_001);
    let pairs: Vec<[BlockId; 2]> =
        (0..200_000).map(|_| [A, B].map(|pool| allocator.allocate(pool, 1, "a").unwrap().id)).collect();
    pairs.iter().for_each(|[of_a, _]| allocator.free(*of_a).unwrap());
    allocator.share(A);
    pairs.iter().for_each(|[_, of_b]| allocator.free(*of_b).unwrap());
    assert_eq!(allocator.growth_bytes(B, 400_001), Some(0));
    assert_eq!(place(allocator.allocate(B, 3, "b")), Some((0, 0, 3)));
    assert_eq!(allocator.growth_bytes(B, 400_001), Some(400_001));
}

#[test]
fn a_block_is_freed_once() {
    let mut allocator = Allocator::new(1);
    allocator.add_segment(100);
    let block = allocator.allocate(A, 10, "a").unwrap().id;
    allocator.free(block).unwrap();
    assert_eq!(allocator.free(block), Err(AllocatorError::Freed { block }));
    let again = allocator.allocate(A, 10, "a").unwrap().id;
    assert_eq!(allocator.free(block), Err(AllocatorError::Freed { block }));
    let later = BlockId(again.0 + (1 << 32));
    for block in [later, BlockId(0), BlockId(u64::MAX)] {
        assert_eq!(allocator.free(block), Err(AllocatorError::Unknown { block }));
    }
    allocator.free(again).unwrap();
}

#[test]
fn figures_and_holders_are_those_of_live_blocks() {
    let mut allocator = Allocator::new(256);
    allocator.add_segment(4096);
    let first = allocator.allocate(A, 300, "weights").unwrap();
    allocator.allocate(A, 100, "batch").unwrap();
    allocator.allocate(A, 100, "batch").unwrap();
    allocator.allocate(A, 1, "anything").unwrap();
    allocator.free(first.id).unwrap();
    let statistics = allocator.statistics();
    assert_eq!((statistics.requested_bytes, statistics.requested_peak_bytes), (201, 501));
    assert_eq!((statistics.in_use_bytes, statistics.in_use_peak_bytes), (768, 1280));
    assert_eq!((statistics.live_block_count, statistics.allocation_count), (3, 4));
    assert_eq!((statistics.free_bytes(), statistics.largest_free_bytes), (3328, 2816));
    assert_eq!(statistics.fragmentation, 1.0 - 2816.0 / 3328.0);
    allocator.reset_peaks();
    let statistics = allocator.statistics();
    assert_eq!((statistics.requested_peak_bytes, statistics.in_use_peak_bytes), (201, 768));
    let holder = |owner: &str, size_bytes, block_count| Holder { owner: owner.to_owned(), size_bytes, block_count };
    assert_eq!(allocator.largest_holders(9), [holder("batch", 512, 2), holder("anything", 256, 1)]);
    assert_eq!(allocator.largest_holders(1), [holder("batch", 512, 2)]);
    let blocks = &allocator.snapshot().segments[0].blocks;
    assert_eq!(blocks[0].state, BlockState::Free { pool: Some(A) });
    assert!(matches!(&blocks[1].state, BlockState::Live { owner, requested_bytes: 100, .. } if owner == "batch"));
    assert_eq!(blocks[4].state, BlockState::Free { pool: None });
}

#[test]
fn free_tiles_become_one_range_and_go_back_to_their_places() {
    let mut allocator = Allocator::new(16);
    let (first, second) = (allocator.add_tiled_segment(320, 64), allocator.add_tiled_segment(64, 64));
    let plain = allocator.add_segment(128);
    // Two tiles are free at either side of a live block in the first segment, and the whole second segment is.
    let left = allocator.allocate(A, 128, "left").unwrap();
    let middle = allocator.allocate(A, 64, "middle").unwrap();
    assert_eq!((left.segment, middle.segment), (plain, second));
    allocator.free(middle.id).unwrap();
    allocator.share(A);
    let left = allocator.allocate(A, 100, "left").unwrap();
    let middle = allocator.allocate(A, 70, "middle").unwrap();
    assert_eq!((left.segment, middle.segment, middle.offset_bytes), (first, first, 112));
    allocator.free(left.id).unwrap();
    assert_eq!(allocator.allocate(A, 200, "large"), None);
    // Two tiles at the end and the second segment are shared, one at the start is A's only.
    assert_eq!(allocator.assembly_growth_bytes(B, 200, 64), Some(64));
    assert_eq!(allocator.assemble(B, 200, 64, "large"), None);
    assert_eq!(allocator.assemble(A, 200, 0, "large"), None);
    let assembly = allocator.assemble(A, 200, 64, "large").unwrap();
    let tiles = |segment, start, end| TileRange { segment, range: ByteRange::new(start, end) };
    assert_eq!(assembly.tiles, [tiles(first, 192, 320), tiles(first, 0, 64), tiles(second, 0, 64)]);
    assert_eq!((assembly.segment_size_bytes, assembly.block.size_bytes), (256, 208));
    assert_eq!((assembly.waits, assembly.emptied), (true, vec![second]));
    assert_eq!(allocator.statistics().reserved_bytes, 320 + 64 + 128);
    // What is left of the last tile is for everybody, the holes are for no one.
    assert_eq!(place(allocator.allocate(B, 48, "rest")), Some((assembly.block.segment.0, 208, 48)));
    assert_eq!(allocator.allocate(B, 1, "hole"), None);
    assert_eq!(allocator.dissolve(assembly.block.segment), None);
    let live: Vec<BlockId> =
        allocator.snapshot().segments.iter().flat_map(|segment| &segment.blocks).filter_map(id).collect();
    for block in live {
        allocator.free(block).unwrap();
    }
    allocator.share(A);
    allocator.share(B);
    let moves = allocator.dissolve(assembly.block.segment).unwrap();
    let moved = |start, end, to| TileMove { from: tiles(assembly.block.segment, start, end), to };
    let back = [Some(tiles(first, 0, 64)), Some(tiles(first, 192, 320)), None];
    assert_eq!(moves, [moved(0, 64, back[0]), moved(64, 192, back[1]), moved(192, 256, back[2])]);
    assert_eq!(place(allocator.allocate(A, 320, "whole")), Some((first.0, 0, 320)));
    assert_eq!(allocator.statistics().reserved_bytes, 320 + 128);
}

fn id(block: &BlockSnapshot) -> Option<BlockId> {
    match block.state {
        BlockState::Live { id, .. } => Some(id),
        _ => None,
    }
}
