//! Draws random numbers that depend on a seed and a position alone.
//!
//! Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
//! (SC 2011): ten rounds of multiplications turn a counter under a key into random words.  There is
//! no state, so what else runs cannot change a draw.

/// What the counter's words are multiplied with.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// What is added to the key's words after each round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Rounds that the authors recommend; seven already pass their tests.
const ROUNDS: usize = 10;

/// Evenly distributed between zero and one, never either: draw `index` of `seed`.
pub(super) fn uniform(seed: u64, index: u64) -> f64 {
    let words = philox(halves(index), halves(seed));
    let bits = u64::from(words[0]) << 20 | u64::from(words[1] >> 12);
    // 52 bits and a half: exact in a double, and the ends are never met.
    (bits as f64 + 0.5) / (1u64 << 52) as f64
}

/// The lower and the upper half.
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// The block of a counter whose upper words are zero.
fn philox(counter: [u32; 2], key: [u32; 2]) -> [u32; 4] {
    block([counter[0], counter[1], 0, 0], key)
}

fn block(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [low0, high0] = halves(u64::from(counter[0]) * u64::from(MULTIPLIERS[0]));
        let [low1, high1] = halves(u64::from(counter[2]) * u64::from(MULTIPLIERS[1]));
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123, the authors' library (`kat_vectors`).
    #[test]
    fn blocks_are_those_of_its_authors() {
        let check = |counter, key, expect: [u32; 4]| assert_eq!(block(counter, key), expect);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = u32::MAX;
        check([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    /// Of a seed and an index whose halves are all used: worked out by another program from the same paper.
    #[test]
    fn a_draw_is_the_first_fifty_two_bits_of_its_block() {
        let check = |seed, index, expect: f64| assert_eq!(uniform(seed, index), expect);
        check(0, 0, 0.3990464708489646);
        check(7, 1, 0.4069604044303493);
        check(u64::MAX, 3, 0.5568819094172067);
        check(0xa409_3822_299f_31d0, 0x243f_6a88_85a3_08d3, 0.6667758116399319);
    }

    #[test]
    fn draws_are_spread_evenly() {
        for seed in [0, 7, u64::MAX] {
            let mut tenths = [0u32; 10];
            for index in 0..10_000 {
                let draw = uniform(seed, index);
                assert!(draw > 0.0 && draw < 1.0);
                tenths[(draw * 10.0) as usize] += 1;
            }
            // Nine degrees of freedom: 27.9 is passed once in a thousand.
            let off = |count: &u32| (f64::from(*count) - 1000.0).powi(2) / 1000.0;
            let chi_square: f64 = tenths.iter().map(off).sum();
            assert!(chi_square < 27.9, "seed {seed}: {chi_square}");
        }
    }
}
