//! Holds the texts and pictures that a model is calibrated with where nobody gives others.
//!
//! Prose, code, tables and conversations in twenty languages, and pictures with a question and an answer
//! each, written and drawn for this purpose.  Decides nothing.

use super::Turn;

/// Blocks that begin with `%% text`, which is read as it stands, or `%% turns`, a conversation the turns of
/// which are parted by `%%`, the user's first.
const TEXTS: &str = include_str!("texts.txt");

/// A picture, what is asked of it, and what is answered.
pub(super) struct Drawn {
    pub(super) name: &'static str,
    pub(super) png: &'static [u8],
    pub(super) question: &'static str,
    pub(super) answer: &'static str,
}

/// The pictures, all of 448 pixels a side.
pub(super) const PICTURES: [Drawn; 6] = [
    Drawn {
        name: "landscape.png",
        png: include_bytes!("landscape.png"),
        question: "Describe this image in detail.",
        answer: "The image shows a hilly landscape under a pale blue sky with thin clouds. In the distance there is a grey ridge, in front of it green hills, and the ground in the foreground is brown and rough, like dry grass or earth. There are no people, animals or buildings.",
    },
    Drawn {
        name: "chart.png",
        png: include_bytes!("chart.png"),
        question: "Read the chart. In which month was the difference between the two years the largest?",
        answer: "The bar chart is titled \"Visitors per month\" and compares 2023 (blue) with 2024 (orange): January 40 and 25, February 55 and 33, March 62 and 48, April 70 and 51. The difference was the largest in February: 55 - 33 = 22.",
    },
    Drawn {
        name: "invoice.png",
        png: include_bytes!("invoice.png"),
        question: "Transcribe the total and the VAT, and check the sum.",
        answer: "The subtotal is 110.30, VAT of 7 % is 7.72, and the total is 118.02. The items are 9.60 + 31.80 + 27.50 + 41.40 = 110.30, and 110.30 + 7.72 = 118.02, so the invoice No. 2024-0317 of Green Valley Garden Supplies adds up.",
    },
    Drawn {
        name: "shapes.png",
        png: include_bytes!("shapes.png"),
        question: "Which shapes and words do you see, and where are they?",
        answer: "On the left there is a red circle, in the middle a green rectangle, and on the right a blue triangle. At the top is a purple ring, at the bottom left a yellow triangle, and at the bottom right a black line runs down to the right. Below the rectangle stands \"EXIT 24\".",
    },
    Drawn {
        name: "street.png",
        png: include_bytes!("street.png"),
        question: "What time of day is it, and what is on the road?",
        answer: "It is night: the sky is dark and many windows of the houses are lit in yellow. On the road there are two cars, a red one on the left and a light grey one on the right, both facing right with their headlights on. White dashes mark the middle of the road.",
    },
    Drawn {
        name: "fruit.png",
        png: include_bytes!("fruit.png"),
        question: "Count the fruit on the table and name their colours.",
        answer: "There are four round fruits on a wooden table: a red one on the left, an orange one in the middle, a green one on the right, and a smaller yellow one behind them.",
    },
];

/// The built-in prompts: a text is one turn of nobody's.
pub(super) fn texts() -> Vec<Vec<Turn>> {
    let mut all: Vec<Vec<Turn>> = Vec::new();
    for line in TEXTS.lines() {
        match line {
            "%% text" => all.push(vec![Turn::plain()]),
            "%% turns" => all.push(vec![Turn::user()]),
            "%%" => {
                if let Some(turns) = all.last_mut() {
                    let next = if turns.len().is_multiple_of(2) {
                        Turn::user()
                    } else {
                        Turn::assistant()
                    };
                    turns.push(next);
                }
            }
            line => {
                if let Some(turn) = all.last_mut().and_then(|turns| turns.last_mut()) {
                    if !turn.text.is_empty() {
                        turn.text.push('\n');
                    }
                    turn.text.push_str(line);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    #[test]
    fn conversations_take_turns_and_texts_are_whole() {
        let all = texts();
        assert!(all.len() > 70, "{}", all.len());
        for turns in &all {
            assert!(turns.iter().all(|turn| !turn.text.trim().is_empty()), "{turns:?}");
            let speakers: Vec<Role> = turns.iter().map(|turn| turn.speaker).collect();
            let alternates = (0..turns.len()).map(|n| match n % 2 {
                0 => Role::User,
                _ => Role::Assistant,
            });
            assert!(speakers == [Role::Nobody] || speakers.into_iter().eq(alternates));
        }
        let code = all.iter().find(|turns| turns[0].text.starts_with("use std")).unwrap();
        assert!(code[0].text.contains("\n    let mut counts = HashMap::new();\n"));
    }

    #[test]
    fn all_of_it_is_small() {
        let pictures: usize = PICTURES.iter().map(|drawn| drawn.png.len()).sum();
        assert!(TEXTS.len() + pictures < 1 << 20);
    }
}
