//! Rewrites one source file so that it contains its mutants, each behind the switch `crate::mutant::on(ID)`.

use std::collections::BTreeSet;

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::token::Paren;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, BinOp, Block, Expr, ExprBinary, ExprBlock, ExprIf, ExprLit, ExprMethodCall, ExprParen, ExprStruct, ImplItemFn,
    Item, ItemFn, Lit, Pat, ReturnType, Signature, Stmt, Token, TraitItemFn, Type, UnOp, parse_quote,
};

use crate::listed::{Kind, Listed};
use crate::operators::{self, other_method, others};

/// One mutant.
pub(crate) struct Mutant {
    pub(crate) id: u32,
    pub(crate) place: String,
    pub(crate) change: String,
}

/// What does not compile.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// Mutants.
    pub(crate) ids: BTreeSet<u32>,
    /// Functions that constants call, with the type: without a switch, for a switch is read at run time.
    pub(crate) constant: BTreeSet<String>,
}

/// Plants the mutants of all files, with ids that do not depend on which of them are left out.
pub(crate) struct Planter<'a> {
    file: String,
    function: String,
    next: u32,
    left_out: &'a LeftOut,
    planted: Vec<Mutant>,
    listed: &'a mut Listed,
    /// In what is printed, and in what constants may call: the mutants of the list alone.
    listed_only: bool,
    /// Those of the list whose operator, in the source, does not keep its operands.
    regrouped: BTreeSet<u32>,
    /// The type of the `impl` and `::`.
    of: String,
}

impl<'a> Planter<'a> {
    /// Numbers mutants from 1, and leaves out those that do not compile.
    pub(crate) fn new(left_out: &'a LeftOut, listed: &'a mut Listed) -> Self {
        let (file, function) = (String::new(), String::new());
        let (planted, regrouped, of) = (Vec::new(), BTreeSet::new(), String::new());
        listed.forget_planted();
        Self { file, function, next: 1, left_out, planted, listed, listed_only: false, regrouped, of }
    }

    /// Returns the source of `file` with its mutants.
    pub(crate) fn plant(&mut self, file: &str, source: &str) -> syn::Result<String> {
        let mut parsed = syn::parse_file(source)?;
        file.clone_into(&mut self.file);
        self.visit_file_mut(&mut parsed);
        Ok(prettyplease::unparse(&parsed))
    }

    /// All planted mutants.
    pub(crate) fn into_planted(self) -> Vec<Mutant> {
        self.planted
    }

    /// The id of the next mutant, unless it is left out.
    fn id(&mut self, at: Span, change: impl FnOnce() -> String) -> Option<u32> {
        if self.listed_only {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.with_id(id, at, change)
    }

    fn with_id(&mut self, id: u32, at: Span, change: impl FnOnce() -> String) -> Option<u32> {
        if self.left_out.ids.contains(&id) {
            return None;
        }
        let place = format!("{}:{} {}", self.file, at.start().line, self.function);
        self.planted.push(Mutant { id, place, change: change() });
        Some(id)
    }

    /// The mutants of the list that are here.
    fn listed(&self, at: Span, kind: Kind) -> Vec<(u32, String)> {
        self.listed.at(&self.file, at, kind)
    }

    /// The id of a mutant of the list, unless it is left out.
    fn listed_id(&mut self, listed: u32, at: Span, change: impl FnOnce() -> String) -> Option<u32> {
        self.listed.planted(listed, listed);
        self.with_id(listed, at, change)
    }

    /// The next mutant of this tool's own kinds is the one of the list.
    fn is_next(&mut self, listed: u32) {
        if !self.listed_only {
            self.listed.planted(listed, self.next);
        }
    }

    /// Wraps an expression: with the mutant on, it is `alternative`.
    fn wrap(&mut self, expr: &mut Expr, at: Span, alternative: &Expr, change: String) {
        let id = self.id(at, || change);
        wrap(expr, id, alternative);
    }

    /// Wraps an expression with a mutant of the list.
    fn wrap_listed(&mut self, listed: u32, expr: &mut Expr, at: Span, alternative: &Expr, change: String) {
        let id = self.listed_id(listed, at, || change);
        wrap(expr, id, alternative);
    }

    /// Negates a condition.
    fn negate(&mut self, expr: &mut Expr, at: Span, change: &str) {
        let text = format!("{change} {}", brief(expr));
        if let Some(id) = self.id(at, || text) {
            let original = parenthesized(std::mem::replace(expr, parse_quote!(())));
            let left: Expr = parse_quote!(crate::mutant::on(#id));
            *expr = parenthesized(binary(left, parse_quote!(!=), original));
        }
    }

    fn function(&mut self, signature: &Signature, block: &mut Block) {
        let before = std::mem::replace(&mut self.function, signature.ident.to_string());
        let listed = block.stmts.first().map(|first| self.listed(first.span(), Kind::Result)).unwrap_or_default();
        let has_return = block.to_token_stream().to_string().contains("return");
        visit_mut::visit_block_mut(self, block);
        let own = if self.listed_only { Vec::new() } else { results(&signature.output) };
        let mut equal = BTreeSet::new();
        for value in &own {
            let change = format!("returns {}", brief(value));
            let is_same = matches!(&block.stmts[..], [Stmt::Expr(only, None)] if brief(only) == brief(value));
            if block.stmts.is_empty() || is_same {
                continue;
            }
            if let Some((listed, _)) = listed.iter().find(|(_, replacement)| is_value(replacement, value)) {
                self.is_next(*listed);
                equal.insert(*listed);
            }
            if let Some(id) = self.id(signature.span(), || change) {
                block.stmts.insert(0, parse_quote!(if crate::mutant::on(#id) { return #value; }));
            }
        }
        let is_opaque = signature.output.to_token_stream().to_string().contains("impl Iterator");
        for (listed, replacement) in listed {
            let Ok(value) = syn::parse_str::<Expr>(&replacement) else { continue };
            if equal.contains(&listed) || (is_opaque && has_return) {
                continue;
            }
            let Some(id) = self.listed_id(listed, signature.span(), || format!("returns {replacement}")) else {
                continue;
            };
            match block.stmts.last_mut() {
                // A second type is not possible there: what the function returns is emptied, and added to.
                Some(Stmt::Expr(last, None)) if is_opaque => {
                    let emptied: Expr = parse_quote!((#last).filter(move |_| !crate::mutant::on(#id)));
                    *last = match &value {
                        Expr::Call(once) if !once.args.is_empty() => {
                            let one = &once.args[0];
                            parse_quote!(#emptied.chain(crate::mutant::on(#id).then(|| #one)))
                        }
                        _ => emptied,
                    };
                }
                _ => block.stmts.insert(0, parse_quote!(if crate::mutant::on(#id) { return #value; })),
            }
        }
        self.function = before;
    }

    /// A function that constants may call loses its `const`, and has the mutants of the list.
    fn constant(&mut self, signature: &mut Signature, block: &mut Block) {
        if !self.left_out.constant.contains(&format!("{}{}", self.of, signature.ident)) {
            signature.constness = None;
            self.listed_only(|planter| planter.function(&signature.clone(), block));
        }
    }

    fn listed_only(&mut self, plant: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.listed_only, true);
        plant(self);
        self.listed_only = before;
    }
}

/// Whether a replacement of the list is this value.
fn is_value(replacement: &str, value: &Expr) -> bool {
    let value = brief(value).replace(' ', "");
    replacement == value || (replacement == "vec![]" && value == "Vec::new()")
}

/// Values that a function of this type may return without doing anything.
fn results(output: &ReturnType) -> Vec<Expr> {
    let ReturnType::Type(_, of) = output else { return vec![parse_quote!(())] };
    let Type::Path(path) = &**of else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    match last.ident.to_string().as_str() {
        "bool" => vec![parse_quote!(true), parse_quote!(false)],
        "Option" => vec![parse_quote!(None)],
        "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => vec![parse_quote!(0), parse_quote!(1)],
        "Vec" => vec![parse_quote!(Vec::new())],
        "Result" if of.to_token_stream().to_string().contains("< ()") => vec![parse_quote!(Ok(()))],
        _ => Vec::new(),
    }
}

/// Whether a condition contains `let`, and so cannot be wrapped.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(paren) => has_let(&paren.expr),
        _ => false,
    }
}

/// With the mutant on, an expression is `alternative`.
fn wrap(expr: &mut Expr, id: Option<u32>, alternative: &Expr) {
    if let Some(id) = id {
        // Put together from parts: tokens alone lose what binds first.
        let original = std::mem::replace(expr, parse_quote!(()));
        let mut branch: ExprIf = parse_quote!(if crate::mutant::on(#id) {} else {});
        branch.then_branch.stmts.push(Stmt::Expr(alternative.clone(), None));
        let block = Block { brace_token: branch.then_branch.brace_token, stmts: vec![Stmt::Expr(original, None)] };
        let otherwise = Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block });
        branch.else_branch = Some((<Token![else]>::default(), Box::new(otherwise)));
        *expr = parenthesized(Expr::If(branch));
    }
}

/// Whether a pattern gives a name to anything, where `None` would be a pattern of its own.
fn is_name(pattern: &Pat) -> bool {
    matches!(pattern, Pat::Ident(name) if name.ident.to_string().starts_with(char::is_lowercase))
}

fn binary(left: Expr, op: BinOp, right: Expr) -> Expr {
    Expr::Binary(ExprBinary { attrs: Vec::new(), left: Box::new(left), op, right: Box::new(right) })
}

fn parenthesized(expr: Expr) -> Expr {
    Expr::Paren(ExprParen { attrs: Vec::new(), paren_token: Paren::default(), expr: Box::new(expr) })
}

fn brief(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    text.chars().take(90).collect()
}

/// Whether an item is compiled for tests alone.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.meta.to_token_stream().to_string().contains("test")
    })
}

impl VisitMut for Planter<'_> {
    fn visit_item_mut(&mut self, item: &mut Item) {
        match item {
            Item::Const(_) | Item::Static(_) | Item::Enum(_) | Item::Struct(_) | Item::Macro(_) => {}
            Item::Mod(module) if is_for_tests(&module.attrs) => {}
            Item::Fn(ItemFn { attrs, sig, block, .. }) => {
                if !is_for_tests(attrs) {
                    match sig.constness {
                        Some(_) => self.constant(sig, block),
                        None => self.function(&sig.clone(), block),
                    }
                }
            }
            Item::Impl(implementation) => {
                let of_type = match &*implementation.self_ty {
                    Type::Path(path) => path.path.segments.last().map(|last| format!("{}::", last.ident)),
                    _ => None,
                };
                let before = std::mem::replace(&mut self.of, of_type.unwrap_or_default());
                let of = implementation.trait_.as_ref().map(|(_, path, _)| path.to_token_stream().to_string());
                // What errors say, and how values are printed, is not the state machine's.
                if of.is_some_and(|of| of.contains("Debug") || of.contains("Display")) {
                    self.listed_only(|planter| visit_mut::visit_item_impl_mut(planter, implementation));
                } else {
                    visit_mut::visit_item_impl_mut(self, implementation);
                }
                self.of = before;
            }
            _ => visit_mut::visit_item_mut(self, item),
        }
    }

    fn visit_impl_item_fn_mut(&mut self, ImplItemFn { attrs, sig, block, .. }: &mut ImplItemFn) {
        if !is_for_tests(attrs) {
            match sig.constness {
                Some(_) => self.constant(sig, block),
                None => self.function(&sig.clone(), block),
            }
        }
    }

    fn visit_trait_item_fn_mut(&mut self, TraitItemFn { sig, default, .. }: &mut TraitItemFn) {
        if let Some(block) = default {
            self.function(&sig.clone(), block);
        }
    }

    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_trait_item_const_mut(&mut self, _: &mut syn::TraitItemConst) {}
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_attribute_mut(&mut self, _: &mut syn::Attribute) {}
    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}
    fn visit_expr_repeat_mut(&mut self, repeat: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut repeat.expr);
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        let at = stmt.span();
        let change = match stmt {
            Stmt::Expr(
                expr @ (Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_) | Expr::Try(_) | Expr::Binary(_)),
                Some(_),
            ) => Some(format!("without {}", brief(expr))),
            Stmt::Expr(Expr::Binary(_), None) | Stmt::Local(_) | Stmt::Item(_) | Stmt::Macro(_) | Stmt::Expr(..) => {
                None
            }
        };
        if matches!(stmt, Stmt::Item(Item::Const(_) | Item::Static(_))) {
            return;
        }
        visit_mut::visit_stmt_mut(self, stmt);
        if let Some(id) = change.and_then(|change| self.id(at, || change)) {
            let original = std::mem::replace(stmt, parse_quote!(();));
            let mut branch: ExprIf = parse_quote!(if !crate::mutant::on(#id) {});
            branch.then_branch.stmts.push(original);
            *stmt = Stmt::Expr(Expr::If(branch), None);
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        let at = arm.span();
        self.visit_expr_mut(&mut arm.body);
        if let Some((_, guard)) = &mut arm.guard {
            let at = guard.span();
            if has_let(guard) {
                return;
            }
            let plain = brief(guard);
            self.visit_expr_mut(guard);
            self.negate(guard, at, "not the guard");
            for (listed, value) in self.listed(at, Kind::Guard) {
                if let Some(id) = self.listed_id(listed, at, || format!("{value} for the guard {plain}")) {
                    let original = parenthesized(std::mem::replace(guard, parse_quote!(())));
                    **guard = match value.as_str() {
                        "true" => binary(parse_quote!(crate::mutant::on(#id)), parse_quote!(||), original),
                        _ => binary(parse_quote!(!crate::mutant::on(#id)), parse_quote!(&&), original),
                    };
                }
            }
        }
        // Without an arm for all that remains, the others would have to name it.
        let is_last_resort = arm.guard.is_none() && is_name(&arm.pat);
        for (listed, _) in self.listed(at, Kind::Arm).into_iter().filter(|_| !is_last_resort) {
            let change = format!("without the arm {}", brief(&arm.pat));
            if let Some(id) = self.listed_id(listed, at, || change) {
                let is_off: Expr = parse_quote!(!crate::mutant::on(#id));
                arm.guard = Some(match arm.guard.take() {
                    Some((token, guard)) => (token, Box::new(binary(is_off, parse_quote!(&&), parenthesized(*guard)))),
                    None => (<Token![if]>::default(), Box::new(is_off)),
                });
            }
        }
    }

    fn visit_expr_struct_mut(&mut self, literal: &mut ExprStruct) {
        visit_mut::visit_expr_struct_mut(self, literal);
        let (Some(base), of) = (&literal.rest, &literal.path) else { return };
        for field in &mut literal.fields {
            let (at, name) = (field.span(), &field.member);
            for (listed, _) in self.listed(at, Kind::Field) {
                let change = format!("without the field {} of {}", brief(name), brief(of));
                let alternative: Expr = match &**base {
                    Expr::Path(base) => parse_quote!(#base.#name),
                    base => parse_quote!({ let base: #of = #base; base.#name }),
                };
                field.colon_token = Some(<Token![:]>::default());
                self.wrap_listed(listed, &mut field.expr, at, &alternative, change);
            }
        }
    }

    fn visit_expr_if_mut(&mut self, branch: &mut ExprIf) {
        let at = branch.cond.span();
        if has_let(&branch.cond) {
            self.visit_chain(&mut branch.cond);
        } else {
            let is_operator = matches!(&*branch.cond, Expr::Binary(_) | Expr::Unary(_));
            self.visit_expr_mut(&mut branch.cond);
            if !is_operator {
                self.negate(&mut branch.cond, at, "not");
            }
        }
        self.visit_block_mut(&mut branch.then_branch);
        if let Some((_, otherwise)) = &mut branch.else_branch {
            self.visit_expr_mut(otherwise);
        }
    }

    fn visit_expr_while_mut(&mut self, repeated: &mut syn::ExprWhile) {
        if has_let(&repeated.cond) {
            self.visit_chain(&mut repeated.cond);
        } else {
            self.visit_expr_mut(&mut repeated.cond);
        }
        self.visit_block_mut(&mut repeated.body);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let at = expr.span();
        let regrouped = self.regroup(expr);
        match expr {
            Expr::Binary(binary) if has_let(&Expr::Binary(binary.clone())) => self.visit_chain(expr),
            Expr::Binary(ExprBinary { left, op, right, .. }) => {
                let (plain_left, plain_right, of) = (left.clone(), right.clone(), *op);
                let listed = self.listed(op.span(), Kind::Operator);
                let is_assignment = matches!(op, BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::BitOrAssign(_));
                if !is_assignment {
                    self.visit_expr_mut(left);
                }
                self.visit_expr_mut(right);
                let with = |other| binary(Expr::clone(&plain_left), other, Expr::clone(&plain_right));
                let own = if self.listed_only { Vec::new() } else { others(&of) };
                for other in &own {
                    let alternative = with(*other);
                    let change = format!("{} for {} in {}", brief(other), brief(&of), brief(&alternative));
                    let equal = listed.iter().find(|(_, replacement)| *replacement == brief(other));
                    if let Some((listed, _)) = equal.filter(|(listed, _)| !self.regrouped.contains(listed)) {
                        self.is_next(*listed);
                    }
                    self.wrap(expr, at, &alternative, change);
                }
                for (listed, replacement) in listed {
                    let Ok(other) = syn::parse_str::<BinOp>(&replacement) else { continue };
                    if own.iter().all(|own| brief(own) != replacement) && !self.regrouped.contains(&listed) {
                        let alternative = with(other);
                        let change = format!("{replacement} for {} in {}", brief(&of), brief(&alternative));
                        self.wrap_listed(listed, expr, at, &alternative, change);
                    }
                }
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) => {
                let (plain, of) = (unary.expr.clone(), unary.op);
                let listed = self.listed(of.span(), Kind::Unary);
                self.visit_expr_mut(&mut unary.expr);
                let change = format!("{} without {}", brief(&plain), brief(&of));
                if matches!(of, UnOp::Not(_)) && !self.listed_only {
                    for (listed, _) in listed {
                        self.is_next(listed);
                    }
                    self.wrap(expr, at, &plain, change);
                } else if let [(listed, _)] = listed[..] {
                    self.wrap_listed(listed, expr, at, &plain, change);
                }
            }
            Expr::MethodCall(call) => {
                let plain = ExprMethodCall::clone(call);
                visit_mut::visit_expr_method_call_mut(self, call);
                if let Some(other) = other_method(&plain.method.to_string()) {
                    let mut alternative = plain.clone();
                    alternative.method = syn::Ident::new(other, plain.method.span());
                    let change = format!("{other} for {} in {}", plain.method, brief(&plain));
                    self.wrap(expr, at, &Expr::MethodCall(alternative), change);
                } else if ["is_some_and", "is_none_or", "is_empty", "contains", "contains_key"]
                    .contains(&plain.method.to_string().as_str())
                {
                    self.negate(expr, at, "not");
                } else if plain.method == "filter" && plain.args.len() == 1 {
                    // Without the filter: one that is always true, for the type's sake.
                    let mut alternative = plain.clone();
                    alternative.args = std::iter::once::<Expr>(parse_quote!(|_| true)).collect();
                    let change = format!("unfiltered {}", brief(&plain));
                    self.wrap(expr, at, &Expr::MethodCall(alternative), change);
                }
            }
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => {
                let Ok(value) = number.base10_parse::<u64>() else { return };
                let other = if value == 1 {
                    2
                } else if value == 0 {
                    1
                } else {
                    value - 1
                };
                let suffix = number.suffix();
                let other = syn::LitInt::new(&format!("{other}{suffix}"), number.span());
                let change = format!("{other} for {number}");
                self.wrap(expr, at, &parse_quote!(#other), change);
            }
            Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Some")) => {
                let plain = brief(&call);
                visit_mut::visit_expr_call_mut(self, call);
                self.wrap(expr, at, &parse_quote!(None), format!("None for {plain}"));
            }
            Expr::Macro(_) => {}
            _ => visit_mut::visit_expr_mut(self, expr),
        }
        for (listed, alternative, change) in regrouped {
            self.wrap_listed(listed, expr, at, &alternative, change);
        }
    }
}

impl Planter<'_> {
    /// The mutants of the list among the operators of an expression that do not keep their operands.
    fn regroup(&mut self, expr: &Expr) -> Vec<(u32, Expr, String)> {
        let operators = if has_let(expr) { Vec::new() } else { operators::of(expr) };
        let mut regrouped = Vec::new();
        for op in operators {
            for (listed, replacement) in self.listed(op.span(), Kind::Operator) {
                if let Some(alternative) = operators::regrouped(expr, op.span(), &replacement)
                    && self.regrouped.insert(listed)
                {
                    let change = format!("{replacement} for {} in {}", brief(&op), brief(&alternative));
                    regrouped.push((listed, alternative, change));
                }
            }
        }
        regrouped
    }

    /// A chain of conditions with `let`: its operators stay, its conditions are visited.
    fn visit_chain(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Binary(binary) if has_let(&binary.left) || has_let(&binary.right) => {
                self.visit_chain(&mut binary.left);
                self.visit_chain(&mut binary.right);
            }
            Expr::Let(bound) => self.visit_expr_mut(&mut bound.expr),
            _ => {
                let at = expr.span();
                let is_operator = matches!(expr, Expr::Binary(_) | Expr::Unary(_));
                self.visit_expr_mut(expr);
                if !is_operator {
                    self.negate(expr, at, "not");
                }
            }
        }
    }
}
