//! Launches attention over pages: of many rows at once, or page by page with a launch that joins what came of them.
//!
//! Both give a row the same bits.  Plain data in, a launch out.

use super::page::PAGE_TOKENS;
use super::rows::{Heads, LayerPages};
use crate::{DeviceAddress, Function, Launch, LaunchArgs};

/// Rows of queries, of one key head, that a block of a prompt takes.
pub(super) const PROMPT_ROWS: u32 = 64;
/// Rows of queries that a warp takes of one page.
pub const PAGE_ROWS: u32 = 16;
/// Threads that join pages, and the pages that they copy at once.
pub(super) const JOIN_THREADS: u32 = 128;
/// Copies that are on their way at once.
pub(super) const JOIN_STAGES: u32 = 3;
/// Warps of pages that a multiprocessor gets before they take several pages each: twice as many as have room at once, so
/// that all end together.
const PAGE_WARPS: u32 = 14;

pub(super) const ATTEND_PROMPT: Function = Function("attend_prompt");
pub(super) const ATTEND_PAGES: Function = Function("attend_pages");
pub(super) const JOIN_PAGES: Function = Function("join_pages");

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

/// Attention of runs of any length; what is before and in a run is seen.
pub fn attend_prompt(attend: Attend) -> Launch {
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
        shared_bytes: 2 * heads.page_bytes(),
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
            shared_bytes: heads.page_bytes(),
            early: true,
            args: pages,
        },
        join_pages(attend, partials),
    ]
}

/// Warps among which the pages of a key head are shared: one for each while there are few, else as many as all have an
/// equal share.
fn page_warps(attend: Attend, partials: Partials, multiprocessors: u32) -> u32 {
    let all = u64::from(partials.pages) * u64::from(attend.heads.keys) * u64::from(attend.count);
    let shares = all.div_ceil(u64::from(PAGE_WARPS * multiprocessors)).max(1);
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
        shared_bytes: stages * partials.pages.min(JOIN_THREADS) * numbers * 4,
        early: true,
        args,
    }
}

#[cfg(test)]
mod tests {
    use smelt_backend::KvType;

    use super::*;
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
        assert_eq!(warps(1, 128), 128);
        assert_eq!(warps(1, 512), 171);
        assert_eq!(warps(32, 8), 4);
        assert_eq!(warps(1, 1), 1);
    }
}
