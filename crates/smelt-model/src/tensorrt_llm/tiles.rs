//! Lays quants out as TensorRT-LLM's mixed GEMM reads them.
//!
//! Rows of a weight `[out, in]` in canonical form come in, bytes for GPUs of compute capability 7.5 to
//! 8.9 go out.  A few outputs lie together: of each, 64 inputs, then the same inputs of the next, then
//! the next 64 inputs.  Among 64 inputs the order is that of the tensor cores' registers.
//! Source: `cutlass_preprocessors.cpp` (`permute_B_rows_for_mixed_gemm`, `interleave_column_major_tensor`,
//! `add_bias_and_interleave_quantized_tensor_inplace`) and `mixed_gemm_B_layout.h` of TensorRT-LLM.
//! Knows no tensors.

/// Inputs of an output that lie together.
pub(super) const TILE: usize = 64;

/// The input at each place of the block that a matrix instruction takes, of quants of 4 bits.
const INPUTS_4: [u8; 32] = [
    0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27, 4, 5, 12, 13, 20, 21, 28, 29, 6, 7,
    14, 15, 22, 23, 30, 31,
];

/// The same of quants of 8 bits.
const INPUTS_8: [u8; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];

/// The place of the block at each place of a register: even ones first, so that a mask and a shift part them.
const REGISTER_4: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The same of quants of 8 bits.
const REGISTER_8: [usize; 4] = [0, 2, 1, 3];

/// What turns a signed byte into one offset by 128.
const SIGN: u8 = 0x80;

/// The layout of quants of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// 4 or 8.
    pub(super) bits: u32,
    /// Outputs that lie together: as many as fill 128 bytes.
    pub(super) together: usize,
    /// The input of a tile at each of its places.
    inputs: [u8; TILE],
}

impl Tiles {
    /// Of quants of 4 bits.
    pub(super) const INT4: Self =
        Self { bits: 4, together: 4, inputs: inputs(&INPUTS_4, &REGISTER_4) };

    /// Of quants of 8 bits.
    pub(super) const INT8: Self =
        Self { bits: 8, together: 2, inputs: inputs(&INPUTS_8, &REGISTER_8) };

    /// Bytes of a canonical row of `columns` quants.
    pub(super) fn row_bytes(self, columns: usize) -> usize {
        columns * self.bits as usize / 8
    }

    /// Appends the bytes of canonical `rows` of `columns` inputs, whole tiles of rows that lie together.
    pub(super) fn pack(self, rows: &[u8], columns: usize, out: &mut Vec<u8>) {
        let row_bytes = self.row_bytes(columns);
        for together in rows.chunks_exact(self.together * row_bytes) {
            for tile in (0..columns).step_by(TILE) {
                for row in together.chunks_exact(row_bytes) {
                    self.pack_tile(&row[self.row_bytes(tile)..], out);
                }
            }
        }
    }

    /// Appends the first tile of `row`.
    fn pack_tile(self, row: &[u8], out: &mut Vec<u8>) {
        if self.bits == 8 {
            return out.extend(self.inputs.map(|input| row[usize::from(input)] ^ SIGN));
        }
        let nibble = |input: u8| (row[usize::from(input / 2)] >> (4 * (input % 2))) & 15;
        let pairs = self.inputs.as_chunks::<2>().0;
        out.extend(pairs.iter().map(|[low, high]| nibble(*low) | nibble(*high) << 4));
    }
}

/// The input at each place of a tile, of blocks and registers in these orders.
const fn inputs(block: &[u8], register: &[usize]) -> [u8; TILE] {
    let (mut all, mut place) = ([0; TILE], 0);
    while place < TILE {
        let in_block = place % block.len();
        let first = in_block / register.len() * register.len();
        let moved = first + register[in_block % register.len()];
        all[place] = (place - in_block) as u8 + block[moved];
        place += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quant of each input (row) and output (column) as a signed number.
    struct Matrix {
        inputs: usize,
        outputs: usize,
        quants: Vec<i16>,
    }

    impl Matrix {
        fn noise(seed: u32, inputs: usize, outputs: usize, bits: u32) -> Self {
            let half = f32::from(1_u8 << (bits - 1));
            let noise = crate::noise::noise(seed, inputs * outputs);
            let quants = noise.iter().map(|x| (x * half).floor().clamp(-half, half - 1.0) as i16);
            Self { inputs, outputs, quants: quants.collect() }
        }

        fn get(&self, input: usize, output: usize) -> i16 {
            self.quants[input * self.outputs + output]
        }

        /// The same in canonical form.
        fn canonical(&self, bits: u32) -> Vec<u8> {
            let row = |output| (0..self.inputs).map(move |input| self.get(input, output));
            let rows = (0..self.outputs).flat_map(row);
            if bits == 8 {
                return rows.map(|quant| (quant as i8).cast_unsigned()).collect();
            }
            let nibbles: Vec<u8> = rows.map(|quant| (quant + 8) as u8).collect();
            nibbles.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4).collect()
        }
    }

    /// The published steps one after another, element by element.
    fn step_by_step(matrix: &Matrix, bits: usize) -> Vec<u8> {
        let (inputs, outputs) = (matrix.inputs, matrix.outputs);
        let permutation = if bits == 4 { INPUTS_4.to_vec() } else { INPUTS_8.to_vec() };
        // Rows change places within a block, then the matrix is turned.
        let block = permutation.len();
        let moved = |input: usize| input / block * block + usize::from(permutation[input % block]);
        let turned: Vec<i16> = (0..outputs)
            .flat_map(|output| (0..inputs).map(move |input| (input, output)))
            .map(|(input, output)| matrix.get(moved(input), output))
            .collect();
        // Words of 32 bits of several outputs take turns, a tile of inputs at a time.
        let in_word = 32 / bits;
        let (words, tile, interleave) = (inputs / in_word, TILE / in_word, 128 * 8 / bits / TILE);
        let mut interleaved = vec![0; turned.len()];
        for output in 0..outputs {
            for word in 0..words {
                let base = word / tile * tile;
                let row = interleave * base + tile * (output % interleave) + word % tile;
                let to = (output / interleave * words * interleave + row) * in_word;
                let from = (output * words + word) * in_word;
                interleaved[to..to + in_word].copy_from_slice(&turned[from..from + in_word]);
            }
        }
        // The middle is added, and a word's elements change places.
        let biased: Vec<u8> =
            interleaved.iter().map(|quant| (quant + (1 << (bits - 1))) as u8).collect();
        if bits == 8 {
            return biased
                .as_chunks::<4>()
                .0
                .iter()
                .flat_map(|&[a, b, c, d]| [a, c, b, d])
                .collect();
        }
        let word = |word: &[u8; 8]| {
            let place = |to: usize| if to < 4 { 2 * to } else { 2 * (to - 4) + 1 };
            (0..8).fold(0, |all, to| all | u32::from(word[place(to)]) << (4 * to)).to_le_bytes()
        };
        biased.as_chunks::<8>().0.iter().flat_map(word).collect()
    }

    #[test]
    fn a_tile_is_what_the_published_steps_make() {
        for (seed, (inputs, outputs)) in
            (1..).zip([(64, 64), (128, 64), (64, 192), (320, 128), (576, 448)])
        {
            for tiles in [Tiles::INT4, Tiles::INT8] {
                let matrix = Matrix::noise(seed, inputs, outputs, tiles.bits);
                let expect = step_by_step(&matrix, tiles.bits as usize);
                let mut found = Vec::new();
                tiles.pack(&matrix.canonical(tiles.bits), inputs, &mut found);
                assert!(found == expect, "{inputs}x{outputs}, {} bits", tiles.bits);
            }
        }
    }

    /// The bytes that another program makes by the published steps, on bytes and words as they are there.
    #[test]
    fn tiles_have_the_bytes_that_another_program_makes() {
        for (tiles, expect) in [(Tiles::INT4, GOLDEN_4), (Tiles::INT8, GOLDEN_8)] {
            let (inputs, outputs) = (TILE, tiles.together);
            let step = if tiles.bits == 4 { 16 } else { 256 };
            let quant = |at: usize| (at / outputs * 7 + at % outputs * 3 + 5) % step;
            let quants = (0..inputs * outputs).map(|at| quant(at) as i16 - step as i16 / 2);
            let matrix = Matrix { inputs, outputs, quants: quants.collect() };
            let mut found = Vec::new();
            tiles.pack(&matrix.canonical(tiles.bits), inputs, &mut found);
            let hex: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expect.replace('\n', ""), "{} bits", tiles.bits);
        }
    }

    #[test]
    fn rows_may_come_a_few_at_a_time() {
        for tiles in [Tiles::INT4, Tiles::INT8] {
            let rows = Matrix::noise(9, 128, 64, tiles.bits).canonical(tiles.bits);
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            tiles.pack(&rows, 128, &mut whole);
            let few = tiles.together * tiles.row_bytes(128);
            rows.chunks(few).for_each(|rows| tiles.pack(rows, 128, &mut parts));
            assert!(parts == whole);
        }
    }

    const GOLDEN_4: &str = "
d5d54c4cb3b32a2a919108087f7fe6e6d5d54c4cb3b32a2a919108087f7fe6e608087f7fe6e65d5dc4c43b3ba2a21919
08087f7fe6e65d5dc4c43b3ba2a219193b3ba2a219198080f7f76e6ed5d54c4c3b3ba2a219198080f7f76e6ed5d54c4c
6e6ed5d54c4cb3b32a2a919108087f7f6e6ed5d54c4cb3b32a2a919108087f7f";

    const GOLDEN_8: &str = "
053d0c44134b1a52215928602f67366e75ad7cb483bb8ac291c998d09fd7a6dee51dec24f32bfa32013908400f47164e
558d5c94639b6aa271a978b07fb786be08400f47164e1d55245c2b63326a397178b07fb786be8dc594cc9bd3a2daa9e1
e820ef27f62efd35043c0b43124a195158905f97669e6da574ac7bb382ba89c1";
}
