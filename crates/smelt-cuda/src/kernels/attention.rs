//! Launches attention over pages: of many rows at once, page by page with a launch that joins what came of them, or of few rows
//! from the product before to what is joined in one launch.
//!
//! All give a row the same bits.  Plain data in, a launch out.

use super::page::PAGE_TOKENS;
use super::rows::{Heads, LayerPages, Rotate, query_scale};
use crate::{DeviceAddress, Function, Launch, LaunchArgs, Processors};

/// Rows of queries, of one key head, that a block of a prompt takes.
pub(super) const PROMPT_ROWS: u32 = 64;
/// Rows of queries that a warp takes of one page.
pub const PAGE_ROWS: u32 = 16;
/// Threads that join pages, and the pages that they copy at once.
pub(super) const JOIN_THREADS: u32 = 128;
/// Copies that are on their way at once.
pub(super) const JOIN_STAGES: u32 = 3;
/// Warps of pages that have room on a multiprocessor at once.
const PAGE_WARPS: u32 = 7;
/// More pages of such a warp are shared by three times as many, of which some begin while others end.
const PAGES_OF_WARP_MAX: u64 = 3;

/// Warps of a block that does all of attention.
pub(super) const TOGETHER_WARPS: u32 = 4;
/// Most bytes of shared memory of such a block, beside what its kernel declares.
const TOGETHER_BYTES_MAX: u32 = 216 << 10;

pub(super) const ATTEND_PROMPT: Function = Function("attend_prompt");
pub(super) const ATTEND_PAGES: Function = Function("attend_pages");
pub(super) const JOIN_PAGES: Function = Function("join_pages");
pub(super) const ATTEND_TOGETHER: Function = Function("attend_together");

/// Neighbouring tokens of some slots that attend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Activations of all heads' numbers.
    pub out: DeviceAddress,
    /// From [`super::rows::rotate_and_keep`].
    pub queries: DeviceAddress,
    /// For each run its first row in the pass, its tokens, the position of the first, and where its pages begin in the
    /// tables; u32 `[runs, 4]`.  One without tokens does nothing.
    pub runs: DeviceAddress,
    /// How many runs.
    pub count: u32,
    /// Tokens of the longest.
    pub tokens_max: u32,
    /// Where keys and values are.
    pub pages: LayerPages,
    /// Tokens of the pass, with which activations are laid out.
    pub tokens: u32,
    /// The decoder's heads.
    pub heads: Heads,
}

/// What comes of single pages, until it is joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partials {
    /// f32 `[runs, key heads, pages, rows, padded head]`.
    pub parts: DeviceAddress,
    /// f32 `[runs, key heads, pages, rows, 2]`: largest scores and sums of weights.
    pub marks: DeviceAddress,
    /// Pages of the longest run, or more.
    pub pages: u32,
    /// Rows of queries of the longest run: tokens times the query heads of a key head; [`PAGE_ROWS`] at most.
    pub rows: u32,
}

impl Partials {
    /// Bytes of parts and of marks for so many runs.
    pub fn bytes(heads: Heads, runs: u32, pages: u32, rows: u32) -> (u64, u64) {
        let count = u64::from(runs) * u64::from(heads.keys) * u64::from(pages) * u64::from(rows);
        (count * heads.shape.padded() as u64 * 4, count * 8)
    }
}

impl Heads {
    /// Query heads of a key head.
    pub const fn group(self) -> u32 {
        self.queries / self.keys
    }

    /// Neighbouring numbers of a head that a block joins.
    const fn joined_numbers(self) -> u32 {
        if self.shape.padded().is_multiple_of(32) { 32 } else { 16 }
    }

    /// Bytes of shared memory of a page of one key head, as halves.
    fn page_bytes(self) -> u32 {
        (2 * PAGE_TOKENS * self.shape.padded() * 2) as u32
    }
}

/// Bytes of shared memory of a block of a prompt on such processors: pages, and, where four warps multiply at once, one more and
/// queries.
fn prompt_bytes(heads: Heads, processors: Processors) -> u32 {
    let is_at_once = processors.has_wgmma() && matches!(heads.shape.padded(), 64 | 128);
    let queries = PROMPT_ROWS * heads.shape.padded() as u32 * 2;
    if is_at_once { 3 * heads.page_bytes() + queries } else { 2 * heads.page_bytes() }
}

/// Attention of runs of any length; what is before and in a run is seen.
pub fn attend_prompt(attend: Attend, processors: Processors) -> Launch {
    let heads = attend.heads;
    let tiles = (attend.tokens_max * heads.group()).div_ceil(PROMPT_ROWS);
    let args = LaunchArgs::new()
        .with(attend.out)
        .with(attend.queries)
        .with(attend.runs)
        .with(attend.pages.pool)
        .with(attend.pages.tables)
        .with(attend.pages.page_bytes)
        .with(attend.tokens)
        .with(heads.queries)
        .with(heads.keys)
        .with(heads.shape.dim as u32);
    Launch {
        function: ATTEND_PROMPT,
        grid: [tiles, heads.keys, attend.count],
        block: [128, 1, 1],
        cluster: 1,
        shared_bytes: prompt_bytes(heads, processors),
        early: true,
        args,
    }
}

/// Attention of runs of at most [`PAGE_ROWS`] rows of queries, a warp for some pages and a key head; then what joins the pages.
pub fn attend_pages(attend: Attend, partials: Partials, multiprocessors: u32) -> [Launch; 2] {
    let heads = attend.heads;
    let pages = LaunchArgs::new()
        .with(partials.parts)
        .with(partials.marks)
        .with(attend.queries)
        .with(attend.runs)
        .with(attend.pages.pool)
        .with(attend.pages.tables)
        .with(attend.pages.page_bytes)
        .with(heads.queries)
        .with(heads.keys)
        .with(partials.rows)
        .with(partials.pages);
    [
        Launch {
            function: ATTEND_PAGES,
            grid: [page_warps(attend, partials, multiprocessors), heads.keys, attend.count],
            block: [32, 1, 1],
            cluster: 1,
            shared_bytes: heads.page_bytes(),
            early: true,
            args: pages,
        },
        join_pages(attend, partials),
    ]
}

/// Warps among which the pages of a key head are shared, all alike: those that run at once, where each has few.  From times on
/// an H200, where one stream of 129 pages takes 13.6 us a layer by 65 warps a head and 15.2 by 129, and one of 513 takes 49.9 by
/// 103 and 43.2 by 257.
fn page_warps(attend: Attend, partials: Partials, multiprocessors: u32) -> u32 {
    let all = u64::from(partials.pages) * u64::from(attend.heads.keys) * u64::from(attend.count);
    let shares = |warps: u32| all.div_ceil(u64::from(warps * multiprocessors)).max(1);
    let at_once = shares(PAGE_WARPS);
    let shares = if at_once <= PAGES_OF_WARP_MAX { at_once } else { shares(3 * PAGE_WARPS) };
    partials.pages.div_ceil(u32::try_from(shares).unwrap_or(u32::MAX))
}

fn join_pages(attend: Attend, partials: Partials) -> Launch {
    let heads = attend.heads;
    let (numbers, padded) = (heads.joined_numbers(), heads.shape.padded() as u32);
    let stages = if partials.pages > JOIN_THREADS { JOIN_STAGES } else { 1 };
    let args = LaunchArgs::new()
        .with(attend.out)
        .with(partials.parts)
        .with(partials.marks)
        .with(attend.runs)
        .with(attend.tokens)
        .with(heads.queries)
        .with(heads.keys)
        .with(heads.shape.dim as u32)
        .with(partials.rows)
        .with(partials.pages);
    Launch {
        function: JOIN_PAGES,
        grid: [partials.rows * (padded / numbers), heads.keys, attend.count],
        block: [JOIN_THREADS, 1, 1],
        cluster: 1,
        shared_bytes: stages * partials.pages.min(JOIN_THREADS) * numbers * 4,
        early: true,
        args,
    }
}

/// How the pages of a key head of a run are dealt where one launch does all of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dealt {
    /// Blocks that share them.
    cluster: u32,
    /// Warps of a block that take some.
    page_warps: u32,
    /// Most pages of a block.
    own_max: u32,
    /// Bytes of shared memory of a block.
    shared_bytes: u32,
}

impl Dealt {
    /// Nothing where the card has no clusters, a block no room, or where warps of all processors are faster, since each would
    /// have several pages while others have none.  From times on an H200: clusters win while they run beside one another, so
    /// large ones are for few runs; blocks of two or three pages at once lose to half as many with four.
    fn of(heads: Heads, runs: u32, pages: u32, rows: u32, processors: Processors) -> Option<Self> {
        if !processors.has_clusters() {
            return None;
        }
        let (alone, at_once) = (heads.keys * runs, processors.count);
        let is_fit = |cluster: &u32| {
            let most = if *cluster > 2 { at_once / 2 } else { at_once };
            let own = pages.div_ceil(*cluster);
            *cluster <= pages && !(2..TOGETHER_WARPS).contains(&own) && cluster * alone <= most
        };
        let cluster = [8, 4, 2].into_iter().find(is_fit).unwrap_or(1);
        let own_max = pages.div_ceil(cluster);
        let page_warps = if cluster * alone > at_once { 2 } else { TOGETHER_WARPS }.min(own_max);
        let part = rows * (heads.shape.padded() as u32 * 4 + 8);
        let shared_bytes = page_warps * heads.page_bytes() + own_max * part;
        let is_slow = cluster > 2 && own_max > page_warps;
        (!is_slow && shared_bytes <= TOGETHER_BYTES_MAX).then_some(Self {
            cluster,
            page_warps,
            own_max,
            shared_bytes,
        })
    }
}

/// Attention of runs of at most [`PAGE_ROWS`] rows of queries and of so many pages, with what [`super::rows::rotate_and_keep`] does
/// before it; nothing where several launches are better.
pub fn attend_together(
    attend: Attend,
    rotate: Rotate,
    (pages, rows): (u32, u32),
    processors: Processors,
) -> Option<Launch> {
    let Heads { queries, keys, shape } = attend.heads;
    let dealt = Dealt::of(attend.heads, attend.count, pages, rows, processors)?;
    let args = LaunchArgs::new()
        .with(attend.out)
        .with(rotate.all)
        .with(rotate.query_norm)
        .with(rotate.key_norm)
        .with(rotate.cosines)
        .with(rotate.sines)
        .with(attend.runs)
        .with(attend.pages.pool)
        .with(attend.pages.tables)
        .with(attend.pages.page_bytes)
        .with(attend.tokens)
        .with(queries)
        .with(keys)
        .with(shape.dim as u32)
        .with(rotate.stride)
        .with(rotate.eps)
        .with(query_scale(shape.dim))
        .with(rows)
        .with(dealt.own_max)
        .with(dealt.page_warps);
    Some(Launch {
        function: ATTEND_TOGETHER,
        grid: [dealt.cluster, keys, attend.count],
        block: [TOGETHER_WARPS * 32, 1, 1],
        cluster: dealt.cluster,
        shared_bytes: dealt.shared_bytes,
        early: true,
        args,
    })
}

#[cfg(test)]
mod tests {
    use smelt_backend::KvType;

    use super::*;
    use crate::Sm;
    use crate::kernels::page::HeadShape;

    #[test]
    fn warps_of_pages_have_equal_shares() {
        let shape = HeadShape { dim: 128, kind: KvType::F16 };
        let none = DeviceAddress::NULL;
        let warps = |runs, pages| {
            let attend = Attend {
                out: none,
                queries: none,
                runs: none,
                count: runs,
                tokens_max: 1,
                pages: LayerPages { pool: none, tables: none, page_bytes: 0 },
                tokens: runs,
                heads: Heads { queries: 16, keys: 8, shape },
            };
            let partials = Partials { parts: none, marks: none, pages, rows: 2 };
            attend_pages(attend, partials, 132)[0].grid[0]
        };
        assert_eq!(warps(1, 8), 8);
        // All at once, two and three each; more are shared by three times as many.
        assert_eq!((warps(1, 129), warps(1, 257)), (65, 86));
        assert_eq!((warps(1, 513), warps(8, 129)), (257, 43));
        assert_eq!((warps(1, 128), warps(1, 512), warps(32, 8)), (64, 256, 3));
        assert_eq!(warps(1, 1), 1);
    }

    #[test]
    fn pages_are_dealt_where_warps_have_one_each_or_all_processors_some() {
        let shape = HeadShape { dim: 128, kind: KvType::F16 };
        let heads = Heads { queries: 16, keys: 8, shape };
        let dealt = |runs, pages| {
            let dealt = Dealt::of(heads, runs, pages, 2, Processors { count: 132, sm: Sm(90) });
            dealt.map(|dealt| (dealt.cluster, dealt.page_warps, dealt.own_max))
        };
        assert_eq!(dealt(1, 8), Some((8, 1, 1)));
        assert_eq!(dealt(1, 16), Some((4, 4, 4)));
        assert_eq!(dealt(1, 32), Some((8, 4, 4)));
        assert_eq!(dealt(1, 64), None, "all processors have warps for so many pages");
        assert_eq!(dealt(2, 16), Some((4, 4, 4)));
        assert_eq!(dealt(8, 8), Some((2, 4, 4)));
        assert_eq!(dealt(8, 128), Some((2, 4, 64)));
        assert_eq!(dealt(32, 8), Some((1, 2, 8)));
        assert_eq!(dealt(32, 512), None, "what came of so many pages has no room");
        let orin = Processors { count: 8, sm: Sm(87) };
        assert_eq!(Dealt::of(heads, 1, 8, 2, orin), None);
    }

    #[test]
    fn pages_that_a_run_writes_are_the_first_of_their_warps() {
        let shape = HeadShape { dim: 64, kind: KvType::Int8 };
        for (count, runs, keys, pages) in (1..=20)
            .flat_map(|count| (1..=20).map(move |runs| (count * 8, runs)))
            .flat_map(|(count, runs)| [1, 2, 8].map(|keys| (count, runs, keys)))
            .flat_map(|(count, runs, keys)| [1, 2, 3, 17].map(|pages| (count, runs, keys, pages)))
        {
            let (heads, processors) =
                (Heads { queries: keys, keys, shape }, Processors { count, sm: Sm(110) });
            let Some(dealt) = Dealt::of(heads, runs, pages, 16, processors) else { continue };
            // Sixteen tokens lie in two pages at most.
            assert!(dealt.cluster * dealt.page_warps >= pages.min(2), "{dealt:?}");
            assert!(dealt.cluster * dealt.own_max >= pages && dealt.own_max >= dealt.page_warps);
        }
    }
}
