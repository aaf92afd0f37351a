//! Which category each counted instruction belongs to.
//!
//! Code belongs to the crate and module of its source file, whatever it was compiled into. Code of the standard library
//! that was compiled into a function belongs with that function; a function of the standard library or of the C library
//! belongs to its callers, in proportion to what their calls cost. What is left has no known name, and is reported.

use std::collections::BTreeMap;

use super::parser::{Counts, FunctionId};
use crate::load::modes::budget::category::{Assigned, Category};

/// Shares of all categories.
type Shares = [f64; Category::ALL.len()];

/// Rounds in which shares are passed on to called functions. Chains of shared functions are shorter; what turns in a
/// circle of them converges.
const ROUNDS: usize = 64;

/// Instructions by category, and those of none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Attribution {
    /// By category.
    pub(crate) costs: BTreeMap<Category, f64>,
    /// What counts as [`Category::Other`], by function.
    pub(crate) unassigned: BTreeMap<String, f64>,
}

impl Attribution {
    fn add(&mut self, category: Category, cost: f64) {
        *self.costs.entry(category).or_default() += cost;
    }

    fn add_unassigned(&mut self, name: &str, cost: f64) {
        self.add(Category::Other, cost);
        *self.unassigned.entry(name.to_owned()).or_default() += cost;
    }
}

/// Attributes all costs.
pub(super) fn attribute(counts: &Counts) -> Attribution {
    let assigned: Vec<Assigned> = counts.functions.iter().map(|function| Assigned::by_symbol(&function.name)).collect();
    let shares = shares_of_callers(counts, &assigned);
    let mut attribution = Attribution::default();
    for (id, function) in counts.functions.iter().enumerate() {
        for (file, cost) in &function.own {
            let cost = *cost as f64;
            match Assigned::by_file(file) {
                Assigned::To(category) => attribution.add(category, cost),
                Assigned::Nothing => attribution.add_unassigned(&format!("{file} in {}", function.name), cost),
                Assigned::Caller => match assigned[id] {
                    Assigned::To(category) => attribution.add(category, cost),
                    Assigned::Nothing => attribution.add_unassigned(&function.name, cost),
                    Assigned::Caller => {
                        for (category, share) in Category::ALL.into_iter().zip(shares[id]) {
                            attribution.add(category, cost * share);
                        }
                        let rest = 1.0 - shares[id].iter().sum::<f64>();
                        attribution.add_unassigned(&function.name, cost * rest.max(0.0));
                    }
                },
            }
        }
    }
    attribution.costs.retain(|_, cost| *cost > 0.0);
    attribution.unassigned.retain(|_, cost| *cost > 0.0);
    attribution
}

/// For each function that belongs to its callers, to what share it belongs to each category. The rest, up to 1, is of
/// callers that belong to none.
fn shares_of_callers(counts: &Counts, assigned: &[Assigned]) -> Vec<Shares> {
    let mut callers: Vec<Vec<(FunctionId, f64)>> = vec![Vec::new(); assigned.len()];
    for ((caller, callee), cost) in &counts.calls {
        if caller != callee && assigned[*callee] == Assigned::Caller {
            callers[*callee].push((*caller, *cost as f64));
        }
    }
    let mut shares: Vec<Shares> = assigned.iter().map(|assigned| fixed_shares(*assigned)).collect();
    for _ in 0..ROUNDS {
        let mut changed = 0.0f64;
        for (callee, callers) in callers.iter().enumerate() {
            let all: f64 = callers.iter().map(|(_, cost)| cost).sum();
            if all == 0.0 {
                continue;
            }
            let mut sum = Shares::default();
            for (caller, cost) in callers {
                for (share, of_caller) in sum.iter_mut().zip(shares[*caller]) {
                    *share += of_caller * cost / all;
                }
            }
            for (new, old) in sum.iter().zip(shares[callee]) {
                changed = changed.max((new - old).abs());
            }
            shares[callee] = sum;
        }
        if changed < 1e-6 {
            break;
        }
    }
    shares
}

fn fixed_shares(assigned: Assigned) -> Shares {
    let mut shares = Shares::default();
    if let Assigned::To(category) = assigned {
        shares[usize::from(category.position())] = 1.0;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::modes::budget::callgrind::parser::parse;

    fn attributed(body: &str) -> Attribution {
        attribute(&parse(&format!("positions: line\nevents: Ir\n{body}")).expect("it is well formed"))
    }

    fn costs(attribution: &Attribution) -> Vec<(Category, i64)> {
        attribution.costs.iter().map(|(category, cost)| (*category, cost.round() as i64)).collect()
    }

    #[test]
    fn code_of_another_crate_that_was_compiled_in_belongs_to_that_crate() {
        let found = attributed(
            "fl=(1) /r/registry/src/i/hyper-1.0.0/src/a.rs\nfn=(1) hyper::a\n1 100\nfi=(2) /x/server/src/json.rs\n1 30\n\
             fi=(3) /rustc/1/library/core/src/ptr/mod.rs\n1 4\n",
        );
        assert_eq!(costs(&found), [(Category::Http, 104), (Category::Json, 30)]);
        assert!(found.unassigned.is_empty());
    }

    #[test]
    fn shared_function_belongs_to_its_callers_by_what_their_calls_cost() {
        // Both call `reserve`, which calls `copy_all`; that calls itself, too.
        let found = attributed(
            "fl=(1) ?\nfn=(1) tokio::a\ncfn=(3) alloc::vec::Vec<T,A>::reserve\ncalls=1 1\n1 60\n\
             fn=(2) driftq_core::state::b\ncfn=(3)\ncalls=9 1\n1 20\n\
             fn=(3)\n1 40\ncfn=(4) core::slice::copy_all\ncalls=1 1\n1 40\n\
             fn=(4)\n1 40\ncfn=(4)\ncalls=1 1\n1 1000\n",
        );
        assert_eq!(costs(&found), [(Category::Runtime, 60), (Category::Core, 20)]);
    }

    #[test]
    fn planted_function_lands_in_other_and_is_reported() {
        let found = attributed(
            "fl=(1) /rustc/1/library/core/src/ptr/mod.rs\nfn=(1) planted::Function::run\n1 70\n\
             cfn=(2) alloc::vec::Vec<T,A>::reserve\ncalls=1 1\n1 5\nfn=(2)\n1 5\n\
             fl=(2) /r/registry/src/i/planted-2.0.1/src/lib.rs\nfn=(3) tokio::a\n1 3\n",
        );
        assert_eq!(costs(&found), [(Category::Other, 78)]);
        let names: Vec<(&str, i64)> =
            found.unassigned.iter().map(|(name, cost)| (name.as_str(), cost.round() as i64)).collect();
        let inlined = "/r/registry/src/i/planted-2.0.1/src/lib.rs in tokio::a";
        assert_eq!(names, [(inlined, 3), ("alloc::vec::Vec<T,A>::reserve", 5), ("planted::Function::run", 70)]);
    }

    #[test]
    fn all_costs_are_attributed() {
        let body = "fl=(1) ?\nfn=(1) main\n1 9\ncfn=(2) core::a\ncalls=1 1\n1 8\nfn=(2)\n1 4\ncfn=(3) std::b\ncalls=1 1\n\
            1 4\nfn=(3)\n1 4\ncfn=(2)\ncalls=1 1\n1 8\nfn=(4) malloc\n1 2\n";
        let found = attributed(body);
        assert_eq!(costs(&found), [(Category::Allocation, 2), (Category::Other, 17)]);
    }
}
