//! Names the kernels of products: those of each form begin with its word.
//!
//! Names are put together when this is compiled, so that a launch borrows them.

use super::form::WeightForm;
use super::product::ProductShape;
use crate::Function;

/// Shapes of products; see [`ProductShape::all`].
const SHAPES: usize = 25;
/// All forms of decoders, and that of graphs.
const FORMS: usize = WeightForm::ALL.len() + 1;

macro_rules! names {
    ($($form:literal),* $(,)?) => {
        /// For each form its kernels, in the order of [`ProductShape::EVERY`], and that which widens rows.
        const NAMES: [(&str, [&str; SHAPES], &str); FORMS] = [$((
            $form,
            [
                concat!($form, "_f8_1x8"),
                concat!($form, "_f8_1x16"),
                concat!($form, "_f8_2x8"),
                concat!($form, "_f8_2x16"),
                concat!($form, "_f16_1x8"),
                concat!($form, "_f16_2x8"),
                concat!($form, "_f32_1x4"),
                concat!($form, "_f32_1x8"),
                concat!($form, "_f32_2x8"),
                concat!($form, "_n1_1x8"),
                concat!($form, "_n1_1x16"),
                concat!($form, "_n1_2x8"),
                concat!($form, "_n1_2x16"),
                concat!($form, "_g_64x32"),
                concat!($form, "_g_64x64"),
                concat!($form, "_g_64x128"),
                concat!($form, "_g_128x64"),
                concat!($form, "_w_128x48"),
                concat!($form, "_w_128x72"),
                concat!($form, "_w_128x96"),
                concat!($form, "_w_128x128"),
                concat!($form, "_w_128x136"),
                concat!($form, "_w_128x160"),
                concat!($form, "_w_128x208"),
                concat!($form, "_s_128x136"),
            ],
            concat!($form, "_widen"),
        )),*];
    };
}

names!(
    "half", "i4", "i4z", "i4g32", "i4g32z", "i4g64", "i4g64z", "i4g128", "i4g128z", "i4g32m",
    "i4g32fm", "i8", "i8g16", "i8g32", "i8g128", "i8g32m", "i8g32fm", "i8g16f", "half2048",
);

fn row(form: WeightForm) -> &'static (&'static str, [&'static str; SHAPES], &'static str) {
    let at = WeightForm::every().position(|other| other == form).unwrap_or(0);
    &NAMES[at]
}

/// The kernel that multiplies weights of a form by a shape.
pub(super) fn product(form: WeightForm, shape: ProductShape) -> Function {
    let at = ProductShape::EVERY.iter().position(|other| *other == shape).unwrap_or(0);
    Function(row(form).1[at])
}

/// The kernel that writes rows of weights of a form as f32.
pub(super) fn widen(form: WeightForm) -> Function {
    Function(row(form).2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_forms_and_shapes_do() {
        assert_eq!(ProductShape::EVERY.len(), SHAPES);
        for (form, (name, _, _)) in WeightForm::every().zip(NAMES) {
            assert_eq!(form.name, name);
            for shape in ProductShape::EVERY {
                assert_eq!(product(form, shape).0, format!("{name}_{}", shape.name()));
            }
        }
    }
}
