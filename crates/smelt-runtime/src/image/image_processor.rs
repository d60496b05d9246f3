//! Says what pictures become before any pixel is touched: which sizes engines are run at, how often,
//! and how many image tokens that gives.
//!
//! The description of a deployment's vision engines and a picture with what its sender wishes come
//! in; an [`ImagePlan`] comes out, and a [`View`] by it.  Knows nothing of engines themselves or of prompts.

use serde::{Deserialize, Serialize};

use super::Image;
use super::cutting::Cutting;
use super::patches::{Patching, Size, TooLong};
use super::resample::resize;
use super::route::{self, By, Router};
use super::split::Splitting;
use super::tiles::{Mosaic, Tiling, tiles};
use super::view::{View, VisionInput};

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
pub struct ImageProcessor {
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
pub struct ImageOptions {
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

impl ImageOptions {
    /// The same, with what `usual` says where nothing is wished.
    #[must_use]
    pub fn or(self, usual: &Self) -> Self {
        let detail = if self.detail == Detail::Auto { usual.detail } else { self.detail };
        Self {
            detail,
            tiles_max: self.tiles_max.or(usual.tiles_max),
            pixels_min: self.pixels_min.or(usual.pixels_min),
            pixels_max: self.pixels_max.or(usual.pixels_max),
            tokens_max: self.tokens_max.or(usual.tokens_max),
        }
    }
}

/// What a picture will become.
#[derive(Clone, Debug, PartialEq)]
pub enum ImagePlan {
    /// Tiles of a mosaic, and for each of them, the thumbnail included, the grid that sees it.
    Tiles {
        /// How the tiles lie.
        mosaic: Mosaic,
        /// Pixels on a side of one before it is given to a grid.
        side: usize,
        /// Indices of [`ImageProcessor::grids`].
        grids: Vec<usize>,
    },
    /// All of it on one grid.
    Whole {
        /// The index of [`ImageProcessor::grids`].
        grid: usize,
    },
}

/// Scores of tiles of `[side, side, 3]` bytes, one for each.
pub type Scorer<'a, E> = dyn Fn(By, &[Vec<u8>], usize) -> Result<Vec<f32>, E> + 'a;

impl ImageProcessor {
    /// Why these engines cannot see pictures so cut, if anything is in the way.
    pub fn fault(&self) -> Option<String> {
        if self.grids.is_empty() {
            return Some("there is no vision engine".to_owned());
        }
        let sizes = || self.grids.iter().map(|grid| grid.size);
        match &self.cutting {
            Cutting::Split(_) if self.grids.len() > 1 => {
                let engines = self.grids.len();
                Some(format!("pictures are split for one vision engine, but there are {engines}"))
            }
            Cutting::Tiles(Tiling { image_size: side, .. })
            | Cutting::Split(Splitting { image_size: side, .. }) => {
                if let Some(size) = sizes().find(|size| size.height != size.width) {
                    return Some(format!("tiles are square, but an engine takes {size}"));
                }
                let largest = sizes().map(|size| size.height).max().unwrap_or_default();
                (largest != *side)
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
        picture: &Image,
        image_options: &ImageOptions,
        score: &Scorer<'_, E>,
    ) -> Result<ImagePlan, E> {
        match &self.cutting {
            Cutting::Tiles(tiling) => self.plan_tiles(picture, tiling, image_options, score),
            Cutting::Split(splitting) => {
                Ok(self.plan_split(picture.size(), splitting, image_options))
            }
            Cutting::Patches(patching) => {
                let patching =
                    patching.with_limits(image_options.pixels_min, image_options.pixels_max);
                Ok(ImagePlan::Whole {
                    grid: self.nearest(patching.target(picture.size())?, image_options),
                })
            }
        }
    }

    /// Parts that engines look at, one after another, of a picture by `plan`.
    pub fn parts(&self, plan: &ImagePlan) -> usize {
        match plan {
            ImagePlan::Tiles { grids, .. } => grids.len(),
            ImagePlan::Whole { .. } => 1,
        }
    }

    /// Image tokens of a picture of `size` by `image_options`, if every part of it is worth the largest engine.
    ///
    /// # Errors
    /// [`TooLong`] if it is too long for its width, of models that see patches.
    pub fn cost(&self, size: Size, image_options: &ImageOptions) -> Result<usize, TooLong> {
        match &self.cutting {
            Cutting::Tiles(_) if image_options.detail == Detail::Low => Ok(self.grids[0].tokens),
            Cutting::Tiles(tiling) => {
                let tiling = tiling.with_most(image_options.tiles_max);
                let mosaic = Mosaic::closest(size.width, size.height, &tiling);
                Ok(self.of_tiles(mosaic.with_thumbnail(&tiling)))
            }
            Cutting::Split(splitting) => {
                Ok(self.tokens(&self.plan_split(size, splitting, image_options)))
            }
            Cutting::Patches(patching) => {
                let patching =
                    patching.with_limits(image_options.pixels_min, image_options.pixels_max);
                Ok(self.grids[self.nearest(patching.target(size)?, image_options)].tokens)
            }
        }
    }

    /// Image tokens of the largest picture by `image_options`.
    pub fn largest(&self, image_options: &ImageOptions) -> usize {
        match &self.cutting {
            Cutting::Tiles(_) if image_options.detail == Detail::Low => self.grids[0].tokens,
            Cutting::Tiles(tiling) => {
                let tiling = tiling.with_most(image_options.tiles_max);
                let all = Mosaic { columns: tiling.max_tiles, rows: 1 };
                self.of_tiles(all.with_thumbnail(&tiling))
            }
            Cutting::Split(splitting) => {
                let Splitting { image_size: side, along, .. } = *splitting;
                let shapes =
                    (1..=along).map(|rows| Size { height: rows * side, width: along * side });
                let tokens = |size| self.tokens(&self.plan_split(size, splitting, image_options));
                shapes.map(tokens).max().unwrap_or_default()
            }
            Cutting::Patches(_) => self.grids.last().map_or(0, |grid| grid.tokens),
        }
    }

    /// Image tokens that every picture has at least.
    pub fn least(&self) -> usize {
        self.grids.first().map_or(0, |grid| grid.tokens)
    }

    /// Image tokens of so many tiles, as far as the router's budget goes.
    fn of_tiles(&self, count: usize) -> usize {
        let of = |grid: Option<&Grid>| count * grid.map_or(0, |grid| grid.tokens);
        let (least, most) = (of(self.grids.first()), of(self.grids.last()));
        let budget = self.router.as_ref().and_then(|router| router.tokens_max);
        budget.map_or(most, |budget| most.min(budget.max(least)))
    }

    /// Image tokens of a picture by `plan`.
    pub fn tokens(&self, plan: &ImagePlan) -> usize {
        match plan {
            ImagePlan::Tiles { grids, .. } => {
                grids.iter().map(|grid| self.grids[*grid].tokens).sum()
            }
            ImagePlan::Whole { grid } => self.grids[*grid].tokens,
        }
    }

    /// The pixels that engines are given of `picture` by `plan`.
    pub fn view(&self, picture: &Image, plan: &ImagePlan) -> View {
        let parts = match plan {
            ImagePlan::Tiles { mosaic, side, grids } => {
                let tiles = match &self.cutting {
                    Cutting::Split(splitting) => splitting.tiles(picture, *mosaic),
                    _ => tiles(picture, *mosaic, *side, grids.len()),
                };
                let tiles = tiles.into_iter().zip(grids);
                tiles.map(|(tile, grid)| self.part(tile, *side, *grid)).collect()
            }
            ImagePlan::Whole { grid } => vec![self.whole(&[picture], *grid)],
        };
        View::new(parts, self.tokens(plan))
    }

    /// The views of a clip whose frames are of one size, all on `grid`: one for as many frames as a
    /// patch has, the last repeated where they are fewer.
    pub fn clip(&self, frames: &[&Image], grid: usize) -> Vec<View> {
        let steps = frames.chunks(self.frames());
        let tokens = self.grids[grid].tokens;
        steps.map(|step| View::new(vec![self.whole(step, grid)], tokens)).collect()
    }

    /// The wishes by which a picture of `size`, of which `plan` came by `image_options`, takes fewer tokens, each with
    /// the most that it then takes: fewer from one to the next, down to the least there is.
    pub fn lower(
        &self,
        size: Size,
        image_options: &ImageOptions,
        plan: &ImagePlan,
    ) -> Vec<(ImageOptions, usize)> {
        match (&self.cutting, plan) {
            (Cutting::Tiles(tiling), ImagePlan::Tiles { mosaic, .. }) => {
                self.fewer_tiles((size, tiling), image_options, *mosaic, self.tokens(plan))
            }
            (Cutting::Patches(patching), ImagePlan::Whole { grid }) => {
                let patching =
                    patching.with_limits(image_options.pixels_min, image_options.pixels_max);
                let Ok(target) = patching.target(size) else { return Vec::new() };
                self.smaller_grids(image_options, *grid, |image_options| {
                    self.nearest(target, image_options)
                })
            }
            (Cutting::Split(splitting), ImagePlan::Tiles { mosaic, .. }) => {
                self.fewer_along((size, splitting), image_options, *mosaic)
            }
            // Who wants little detail has the least.
            _ => Vec::new(),
        }
    }

    /// As [`Self::lower`] of each step of a clip, of which so many frames are seen on `grid`.
    pub fn lower_clip(
        &self,
        (size, frames): (Size, usize),
        image_options: &ImageOptions,
        grid: usize,
    ) -> Vec<(ImageOptions, usize)> {
        self.smaller_grids(image_options, grid, |image_options| {
            self.plan_clip(size, frames, image_options).unwrap_or(0)
        })
    }

    /// Smaller and smaller grids than `grid`; `nearest` gives the best by a wish.
    fn smaller_grids(
        &self,
        image_options: &ImageOptions,
        grid: usize,
        nearest: impl Fn(&ImageOptions) -> usize,
    ) -> Vec<(ImageOptions, usize)> {
        let (mut ways, mut tokens) = (Vec::new(), self.grids[grid].tokens);
        let below = |most| self.grids.iter().map(|grid| grid.tokens).filter(move |of| *of < most);
        while let Some(most) = below(tokens).max() {
            let image_options = ImageOptions { tokens_max: Some(most), ..*image_options };
            let found = self.grids[nearest(&image_options)].tokens;
            if found >= tokens {
                break;
            }
            tokens = found;
            ways.push((image_options, tokens));
        }
        ways
    }

    /// Of several engines smaller and smaller ones for the plainest tiles; then fewer tiles.
    fn fewer_tiles(
        &self,
        (size, tiling): (Size, &Tiling),
        image_options: &ImageOptions,
        mosaic: Mosaic,
        wished: usize,
    ) -> Vec<(ImageOptions, usize)> {
        /// A budget is lowered in so many steps at most: as fine as tiles are.
        const STEPS_MAX: usize = Tiling::TILES_MAX;
        let least = self.grids[0].tokens;
        let is_routed = self.grids.len() > 1;
        let (mut ways, mut tokens) = (Vec::new(), wished);
        let floor = mosaic.with_thumbnail(tiling) * least;
        let step = wished.saturating_sub(floor).div_ceil(STEPS_MAX).max(1);
        while is_routed && tokens > floor {
            tokens = tokens.saturating_sub(step).max(floor);
            ways.push((ImageOptions { tokens_max: Some(tokens), ..*image_options }, tokens));
        }
        for most in (1..mosaic.tiles()).rev() {
            let image_options = ImageOptions { tiles_max: Some(most), ..*image_options };
            let tiling = tiling.with_most(image_options.tiles_max);
            let found = Mosaic::closest(size.width, size.height, &tiling);
            let cost = found.with_thumbnail(&tiling) * least;
            if cost < tokens {
                tokens = cost;
                let tokens_max = if is_routed { Some(cost) } else { image_options.tokens_max };
                ways.push((ImageOptions { tokens_max, ..image_options }, cost));
            }
        }
        ways
    }

    /// The grid that all of so many frames of a clip are seen on, by the size of its first.
    ///
    /// # Errors
    /// [`TooLong`] if the frames are too long for their width, of models that see patches.
    pub fn plan_clip(
        &self,
        size: Size,
        frames: usize,
        image_options: &ImageOptions,
    ) -> Result<usize, TooLong> {
        match &self.cutting {
            Cutting::Split(_) => Ok(0),
            Cutting::Tiles(_) if image_options.detail == Detail::Low => Ok(0),
            Cutting::Tiles(_) => Ok(self.allowed(image_options) - 1),
            Cutting::Patches(patching) => {
                let limits = [image_options.pixels_min, image_options.pixels_max];
                Ok(self.nearest(patching.clip_target(size, frames, limits)?, image_options))
            }
        }
    }

    /// Frames of a clip that become one view.
    pub fn frames(&self) -> usize {
        match &self.cutting {
            Cutting::Tiles(_) | Cutting::Split(_) => 1,
            Cutting::Patches(patching) => patching.frames,
        }
    }

    /// As many tiles along the longest edge as the wish and the budget leave; the whole picture alone if that is one.
    fn plan_split(
        &self,
        size: Size,
        splitting: &Splitting,
        image_options: &ImageOptions,
    ) -> ImagePlan {
        let each = self.grids[0].tokens;
        let tokens_max = self.router.as_ref().and_then(|router| router.tokens_max);
        let budget = image_options.tokens_max.into_iter().chain(tokens_max).min();
        let fits = |mosaic: &Mosaic| {
            let tokens = (mosaic.tiles() + 1) * each;
            image_options.tiles_max.is_none_or(|most| mosaic.tiles() <= most)
                && budget.is_none_or(|budget| tokens <= budget)
        };
        let wanted = if image_options.detail == Detail::Low { 1 } else { splitting.along };
        let mut mosaics = (2..=wanted).rev().map(|along| splitting.mosaic(size, along));
        match mosaics.find(fits) {
            Some(mosaic) => {
                let grids = vec![0; mosaic.tiles() + 1];
                ImagePlan::Tiles { mosaic, side: splitting.image_size, grids }
            }
            None => ImagePlan::Whole { grid: 0 },
        }
    }

    /// Fewer and fewer tiles along the longest edge, down to the whole picture alone.
    fn fewer_along(
        &self,
        (size, splitting): (Size, &Splitting),
        image_options: &ImageOptions,
        mosaic: Mosaic,
    ) -> Vec<(ImageOptions, usize)> {
        let (mut ways, mut tiles) = (Vec::new(), mosaic.tiles());
        for along in (1..mosaic.columns.max(mosaic.rows)).rev() {
            let fewer = splitting.mosaic(size, along).tiles();
            if fewer < tiles {
                tiles = fewer;
                let image_options = ImageOptions { tiles_max: Some(tiles), ..*image_options };
                let plan = self.plan_split(size, splitting, &image_options);
                ways.push((image_options, self.tokens(&plan)));
            }
        }
        ways
    }

    fn plan_tiles<E>(
        &self,
        picture: &Image,
        tiling: &Tiling,
        image_options: &ImageOptions,
        score: &Scorer<'_, E>,
    ) -> Result<ImagePlan, E> {
        let last = self.grids.len() - 1;
        if image_options.detail == Detail::Low {
            return Ok(ImagePlan::Whole { grid: 0 });
        }
        let tiling = &tiling.with_most(image_options.tiles_max);
        let side = tiling.image_size;
        let mosaic = Mosaic::closest(picture.width(), picture.height(), tiling);
        let count = mosaic.with_thumbnail(tiling);
        let costs: Vec<usize> = self.grids.iter().map(|grid| grid.tokens).collect();
        let is_open = image_options.detail == Detail::Auto && last > 0;
        // Without a router, every tile is wanted closely and a budget goes by texture.
        let (none, router) = (Router::default(), self.router.as_ref().filter(|_| is_open));
        let Router { by, thresholds, tokens_max } = router.unwrap_or(&none);
        let budget = image_options.tokens_max.into_iter().chain(*tokens_max).min();
        let is_enough = budget.is_none_or(|budget| budget >= count * costs[last]);
        if is_enough && thresholds.is_empty() {
            return Ok(ImagePlan::Tiles { mosaic, side, grids: vec![last; count] });
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
        Ok(ImagePlan::Tiles { mosaic, side, grids })
    }

    /// The grid that a picture is seen on as a whole which should have the size `target`.
    fn nearest(&self, target: Size, image_options: &ImageOptions) -> usize {
        if image_options.detail == Detail::Low {
            return 0;
        }
        let sizes: Vec<Size> =
            self.grids[..self.allowed(image_options)].iter().map(|grid| grid.size).collect();
        Patching::nearest(target, &sizes).unwrap_or_default()
    }

    /// How many grids, from the smallest, a whole picture may be seen on; the smallest in any case.
    fn allowed(&self, image_options: &ImageOptions) -> usize {
        let fits = |grid: &&Grid| image_options.tokens_max.is_none_or(|most| grid.tokens <= most);
        self.grids.iter().take_while(fits).count().max(1)
    }

    /// A tile of `side` pixels for `grid`.
    fn part(&self, tile: Vec<u8>, side: usize, grid: usize) -> VisionInput {
        let size = self.grids[grid].size;
        if size.height == side {
            return VisionInput { grid, frames: vec![tile] };
        }
        let tile = Image::from_rgb(side, side, tile).expect("a tile is a full square");
        VisionInput { grid, frames: vec![resize(&tile, size.width, size.height)] }
    }

    fn whole(&self, frames: &[&Image], grid: usize) -> VisionInput {
        let Size { height, width } = self.grids[grid].size;
        let seen = |frame: &&Image| match &self.cutting {
            Cutting::Split(splitting) => splitting.whole(frame),
            _ => resize(frame, width, height),
        };
        VisionInput { grid, frames: frames.iter().map(seen).collect() }
    }
}
