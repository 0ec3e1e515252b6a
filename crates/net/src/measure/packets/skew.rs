//! Rate between two clocks, from one-way delays: the line below all delays (Moon, Skelly and Towsley 1999).

/// Largest rate between two clocks, in 10^-9. Reason: NTP slews a clock by up to 500 ppm. A larger slope is a queue
/// that grows during the whole train.
const SKEW_PPB_MAX: f64 = 500_000.0;

/// Returns the rate of the receiver's clock against the sender's: delay gained for each nanosecond. 0 if it cannot be
/// that of a clock. `points`: time of sending and delay, ns, by rising time.
///
/// The line is the segment of the lower convex hull over the mean time: of all lines below the points it has the
/// smallest sum of distances.
pub(super) fn skew(points: &[(i64, i64)]) -> f64 {
    let mut hull: Vec<(i64, i64)> = Vec::new();
    for point in points {
        while let [.., before, last] = hull[..] {
            let (to_last, to_point) = (difference(before, last), difference(before, *point));
            if to_last.0 * to_point.1 - to_last.1 * to_point.0 > 0 {
                break;
            }
            hull.pop();
        }
        hull.push(*point);
    }
    let count = i128::try_from(points.len().max(1)).unwrap_or(i128::MAX);
    let mean = points.iter().map(|(time, _)| i128::from(*time)).sum::<i128>() / count;
    let segment = hull.windows(2).find(|pair| i128::from(pair[1].0) >= mean);
    let Some(&[start, end]) = segment else { return 0.0 };
    let (time, delay) = difference(start, end);
    let slope = if time == 0 { 0.0 } else { delay as f64 / time as f64 };
    if slope.abs() * 1e9 > SKEW_PPB_MAX { 0.0 } else { slope }
}

fn difference(from: (i64, i64), to: (i64, i64)) -> (i128, i128) {
    (i128::from(to.0) - i128::from(from.0), i128::from(to.1) - i128::from(from.1))
}

#[cfg(test)]
mod tests {
    use sterna_seeded::{Seeded, for_seeds};

    use super::*;

    #[test]
    fn the_skew_of_clocks_is_found_below_a_varying_queue() {
        for_seeds("the_skew_of_clocks", 20, |seed| {
            let mut random = Seeded::new(seed);
            let ppb = i64::try_from(random.below(400_000)).unwrap() - 200_000;
            // 5 s; a queue of up to 20 ms that is empty in about one of ten intervals.
            let points: Vec<(i64, i64)> = (0..500)
                .map(|index| {
                    let time = index * 10_000_000;
                    let queue = if random.below(10) == 0 { 0 } else { random.below(20_000_000) };
                    (time, 40_000_000 + time * ppb / 1_000_000_000 + i64::try_from(queue).unwrap())
                })
                .collect();
            let found = skew(&points) * 1e9;
            assert!((found - ppb as f64).abs() < 20.0, "seed {seed}: {found} instead of {ppb}");
        });
    }

    #[test]
    fn a_growing_queue_is_no_skew() {
        let points: Vec<(i64, i64)> = (0..300).map(|index| (index * 10_000_000, index * 200_000)).collect();
        assert_eq!(skew(&points), 0.0, "2 % above the rate of a shaper");
        assert_eq!((skew(&[]), skew(&[(5, 5)]), skew(&[(5, 5), (5, 6)])), (0.0, 0.0, 0.0));
    }
}
