//! Colours and dashes: no two pens look the same, not even without colours.
use plotters::style::RGBColor;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pen {
    pub(crate) colour: RGBColor,
    /// Pixels of a dash and of the gap behind it; none is a line without gaps.
    pub(crate) dash: Option<(i32, i32)>,
}

impl Pen {
    /// What the picture is about.
    pub const BLUE: Self = Self::new(31, 111, 180, None);
    /// Its first variant.
    pub const GREEN: Self = Self::new(44, 140, 85, Some((10, 4)));
    /// Its second variant.
    pub const CYAN: Self = Self::new(23, 170, 190, Some((3, 3)));
    /// What it is compared with.
    pub const ORANGE: Self = Self::new(226, 122, 28, None);
    /// The second of these.
    pub const PURPLE: Self = Self::new(150, 80, 160, Some((10, 4)));
    /// The third.
    pub const GREY: Self = Self::new(120, 120, 120, Some((3, 3)));

    const fn new(red: u8, green: u8, blue: u8, dash: Option<(i32, i32)>) -> Self {
        Self { colour: RGBColor(red, green, blue), dash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pens_look_the_same() {
        let pens = [Pen::BLUE, Pen::GREEN, Pen::CYAN, Pen::ORANGE, Pen::PURPLE, Pen::GREY];
        for (i, a) in pens.iter().enumerate() {
            for b in &pens[..i] {
                assert_ne!(a.colour, b.colour);
            }
        }
        // Within what the picture is about, and within what it is compared with, dashes tell them apart as well.
        for family in pens.chunks_exact(3) {
            let [a, b, c] = [0, 1, 2].map(|i| family[i].dash);
            assert!(a != b && b != c && a != c);
        }
    }
}
