//! Says what pictures become before any pixel is touched: which sizes engines are run at, how often,
//! and how many image tokens that gives.
//!
//! The description of a deployment's vision engines and a picture with what its sender wishes come
//! in; a [`Plan`] comes out, and a [`View`] by it.  Knows nothing of engines themselves or of prompts.

use serde::{Deserialize, Serialize};

use super::Picture;
use super::patches::{Patching, Size, TooLong};
use super::resample::resize;
use super::route::{self, By, Router};
use super::tiles::{Mosaic, Tiling, tiles};
use super::view::{Part, View};

/// How a family's pictures are cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cutting {
    /// Into square tiles: InternVL.
    Tiles(Tiling),
    /// Into patches of a grid of any shape: Qwen-VL.
    Patches(Patching),
}

impl Cutting {
    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Tiles(tiling) => tiling.fault(),
            Self::Patches(patching) => patching.fault(),
        }
    }
}

/// A size of pictures that a vision engine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The size.
    pub size: Size,
    /// Image tokens that it gives.
    pub tokens: usize,
}

/// What the vision engines of a deployment take and give; shared by all who prepare pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct Eyes {
    /// How pictures are cut and normalised.
    pub cutting: Cutting,
    /// The engines' sizes, from few pixels to many; at least one.
    pub grids: Vec<Grid>,
    /// How tiles are given to the engines where there are several and the sender leaves it open.
    pub router: Option<Router>,
}

/// How closely a picture is looked at: `detail` of OpenAI's API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// As the deployment does by itself.
    #[default]
    Auto,
    /// Once, by the smallest engine.
    Low,
    /// As closely as the engines can.
    High,
}

/// What the sender of a picture wishes; nothing goes beyond what the deployment allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// How closely it is looked at.
    pub detail: Detail,
    /// Most tiles, the thumbnail apart; of models that see tiles.
    pub tiles_max: Option<usize>,
    /// Fewest pixels it is given; of models that see patches.
    pub pixels_min: Option<usize>,
    /// Most pixels it is given; of models that see patches.
    pub pixels_max: Option<usize>,
    /// Most image tokens, as far as the smallest engine can keep to it.
    pub tokens_max: Option<usize>,
}

/// What a picture will become.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Tiles of a mosaic, and for each of them, the thumbnail included, the grid that sees it.
    Tiles {
        /// How the tiles lie.
        mosaic: Mosaic,
        /// Pixels on a side of one before it is given to a grid.
        side: usize,
        /// Indices of [`Eyes::grids`].
        grids: Vec<usize>,
    },
    /// All of it on one grid.
    Whole {
        /// The index of [`Eyes::grids`].
        grid: usize,
    },
}

/// Scores of tiles of `[side, side, 3]` bytes, one for each.
pub type Scorer<'a, E> = dyn Fn(By, &[Vec<u8>], usize) -> Result<Vec<f32>, E> + 'a;

impl Eyes {
    /// Why these engines cannot see pictures so cut, if anything is in the way.
    pub fn fault(&self) -> Option<String> {
        if self.grids.is_empty() {
            return Some("there is no vision engine".to_owned());
        }
        let sizes = || self.grids.iter().map(|grid| grid.size);
        match &self.cutting {
            Cutting::Tiles(tiling) => {
                let side = tiling.image_size;
                if let Some(size) = sizes().find(|size| size.height != size.width) {
                    return Some(format!("tiles are square, but an engine takes {size}"));
                }
                let largest = sizes().map(|size| size.height).max().unwrap_or_default();
                (largest != side)
                    .then(|| format!("image_size is {side}, but the vision engine takes {largest}"))
            }
            Cutting::Patches(patching) => {
                let step = patching.step();
                let is_uneven = |size: &Size| {
                    !size.height.is_multiple_of(step) || !size.width.is_multiple_of(step)
                };
                let size = sizes().find(is_uneven)?;
                Some(format!("an engine takes {size}, which is not made of {step}-pixel tokens"))
            }
        }
        .or_else(|| self.router.as_ref().and_then(|router| router.fault(self.grids.len())))
    }

    /// What a picture will become.  `score` is asked only where it matters, and then of all tiles.
    ///
    /// # Errors
    /// [`TooLong`] if it is too long for its width, of models that see patches; what `score` says.
    pub fn plan<E: From<TooLong>>(
        &self,
        picture: &Picture,
        wish: &Wish,
        score: &Scorer<'_, E>,
    ) -> Result<Plan, E> {
        match &self.cutting {
            Cutting::Tiles(tiling) => self.plan_tiles(picture, tiling, wish, score),
            Cutting::Patches(patching) => {
                let patching = patching.with_limits(wish.pixels_min, wish.pixels_max);
                Ok(Plan::Whole { grid: self.nearest(patching.target(picture.size())?, wish) })
            }
        }
    }

    /// Image tokens of a picture by `plan`.
    pub fn tokens(&self, plan: &Plan) -> usize {
        match plan {
            Plan::Tiles { grids, .. } => grids.iter().map(|grid| self.grids[*grid].tokens).sum(),
            Plan::Whole { grid } => self.grids[*grid].tokens,
        }
    }

    /// The pixels that engines are given of `picture` by `plan`.
    pub fn view(&self, picture: &Picture, plan: &Plan) -> View {
        let parts = match plan {
            Plan::Tiles { mosaic, side, grids } => {
                let tiles = tiles(picture, *mosaic, *side, grids.len()).into_iter().zip(grids);
                tiles.map(|(tile, grid)| self.part(tile, *side, *grid)).collect()
            }
            Plan::Whole { grid } => vec![self.whole(&[picture], *grid)],
        };
        View::new(parts, self.tokens(plan))
    }

    /// The views of a clip whose frames are of one size, all on `grid`: one for as many frames as a
    /// patch has, the last repeated where they are fewer.
    pub fn clip(&self, frames: &[Picture], grid: usize) -> Vec<View> {
        let steps = frames.chunks(self.frames());
        let tokens = self.grids[grid].tokens;
        let view = |step: &[Picture]| {
            let frames: Vec<&Picture> = step.iter().collect();
            View::new(vec![self.whole(&frames, grid)], tokens)
        };
        steps.map(view).collect()
    }

    /// The grid that all of so many frames of a clip are seen on, by the size of its first.
    ///
    /// # Errors
    /// [`TooLong`] if the frames are too long for their width, of models that see patches.
    pub fn plan_clip(&self, size: Size, frames: usize, wish: &Wish) -> Result<usize, TooLong> {
        match &self.cutting {
            Cutting::Tiles(_) if wish.detail == Detail::Low => Ok(0),
            Cutting::Tiles(_) => Ok(self.allowed(wish) - 1),
            Cutting::Patches(patching) => {
                let limits = [wish.pixels_min, wish.pixels_max];
                Ok(self.nearest(patching.clip_target(size, frames, limits)?, wish))
            }
        }
    }

    /// Frames of a clip that become one view.
    pub fn frames(&self) -> usize {
        match &self.cutting {
            Cutting::Tiles(_) => 1,
            Cutting::Patches(patching) => patching.frames,
        }
    }

    fn plan_tiles<E>(
        &self,
        picture: &Picture,
        tiling: &Tiling,
        wish: &Wish,
        score: &Scorer<'_, E>,
    ) -> Result<Plan, E> {
        let last = self.grids.len() - 1;
        if wish.detail == Detail::Low {
            return Ok(Plan::Whole { grid: 0 });
        }
        let tiling = &tiling.with_most(wish.tiles_max);
        let side = tiling.image_size;
        let mosaic = Mosaic::closest(picture.width(), picture.height(), tiling);
        let count = mosaic.with_thumbnail(tiling);
        let costs: Vec<usize> = self.grids.iter().map(|grid| grid.tokens).collect();
        let is_open = wish.detail == Detail::Auto && last > 0;
        // Without a router, every tile is wanted closely and a budget goes by texture.
        let (none, router) = (Router::default(), self.router.as_ref().filter(|_| is_open));
        let Router { by, thresholds, tokens_max } = router.unwrap_or(&none);
        let budget = wish.tokens_max.into_iter().chain(*tokens_max).min();
        let is_enough = budget.is_none_or(|budget| budget >= count * costs[last]);
        if is_enough && thresholds.is_empty() {
            return Ok(Plan::Tiles { mosaic, side, grids: vec![last; count] });
        }
        let mut scores = score(*by, &tiles(picture, mosaic, side, count), side)?;
        if count > mosaic.tiles() {
            route::lift_last(&mut scores);
        }
        let wanted = router.unwrap_or(&none).by_thresholds(&scores, last);
        let grids = match budget {
            Some(budget) => route::within(&wanted, &scores, &costs, budget),
            None => wanted,
        };
        Ok(Plan::Tiles { mosaic, side, grids })
    }

    /// The grid that a picture is seen on as a whole which should have the size `target`.
    fn nearest(&self, target: Size, wish: &Wish) -> usize {
        if wish.detail == Detail::Low {
            return 0;
        }
        let sizes: Vec<Size> =
            self.grids[..self.allowed(wish)].iter().map(|grid| grid.size).collect();
        Patching::nearest(target, &sizes).unwrap_or_default()
    }

    /// How many grids, from the smallest, a whole picture may be seen on; the smallest in any case.
    fn allowed(&self, wish: &Wish) -> usize {
        let fits = |grid: &&Grid| wish.tokens_max.is_none_or(|most| grid.tokens <= most);
        self.grids.iter().take_while(fits).count().max(1)
    }

    /// A tile of `side` pixels for `grid`.
    fn part(&self, tile: Vec<u8>, side: usize, grid: usize) -> Part {
        let size = self.grids[grid].size;
        if size.height == side {
            return Part { grid, frames: vec![tile] };
        }
        let tile = Picture::from_rgb(side, side, tile).expect("a tile is a full square");
        Part { grid, frames: vec![resize(&tile, size.width, size.height)] }
    }

    fn whole(&self, frames: &[&Picture], grid: usize) -> Part {
        let Size { height, width } = self.grids[grid].size;
        Part { grid, frames: frames.iter().map(|frame| resize(frame, width, height)).collect() }
    }
}
