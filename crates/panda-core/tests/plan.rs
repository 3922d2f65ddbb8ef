//! Planning for any sizes.
use panda_core::{Error, MemoryBudget, Plan, Precision, Real, Shape};

#[test]
fn sizes_that_nobody_has_are_planned() {
    are_planned::<f32>();
    are_planned::<f64>();
}

fn are_planned<F: Real>() {
    let sizes = [0, 1, 1000, 1 << 40, usize::MAX];
    let budgets = [
        MemoryBudget::bytes(0),
        MemoryBudget::default(),
        MemoryBudget::recompute(),
        MemoryBudget::unlimited(),
    ];
    for sites in sizes {
        for hidden in sizes {
            for classes in sizes {
                let shape = Shape { sites, hidden, classes, selected: 2 };
                for precision in [Precision::Full, Precision::Bf16] {
                    for budget in budgets {
                        let plan = match Plan::<F>::new(shape, precision, budget) {
                            Ok(plan) => plan,
                            Err(error) => {
                                let smallest = Plan::<F>::smallest(shape, precision);
                                let found = budget.limit();
                                assert_eq!(error, Error::Budget { smallest, found }, "{shape:?}");
                                assert!(budget.keeps() && smallest > found, "{shape:?}: {smallest} {found}");
                                continue;
                            }
                        };
                        assert!(
                            plan.wave > 0 && plan.block > 0 && plan.tile_classes > 0 && plan.tiles > 0,
                            "{shape:?}"
                        );
                        let (bytes, operations) = (plan.bytes(shape, precision), plan.operations(shape));
                        // Two hidden rows at least.
                        assert!(
                            bytes / 8 >= hidden.min(1 << 40) / 4 * usize::from(sites > 0),
                            "{shape:?}: {bytes}"
                        );
                        let huge = [sites, hidden, classes].into_iter().all(|size| size > 1 << 30);
                        assert!(!huge || (bytes == usize::MAX || bytes > 1 << 40) && operations > 1 << 60);
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_planned_stays_within_the_budget() {
    for (sites, hidden, classes) in
        [(2600, 512, 8192), (6662, 1024, 4096), (50_500, 1024, 4096), (600_000, 1706, 8192)]
    {
        let shape = Shape { sites, hidden, classes, selected: 2 };
        for mebibytes in [40, 64, 200, 1000] {
            let budget = MemoryBudget::bytes(mebibytes << 20);
            let bytes =
                Plan::<f32>::new(shape, Precision::Full, budget).unwrap().bytes(shape, Precision::Full);
            assert!(bytes <= budget.limit(), "{shape:?}: {bytes} of {}", budget.limit());
        }
    }
}
