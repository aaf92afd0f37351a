//! Rewrites one source file so that it contains its mutants, each behind the switch `crate::mutant::on(ID)`.

use std::collections::BTreeSet;

use proc_macro2::Span;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::token::Paren;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, BinOp, Block, Expr, ExprBinary, ExprBlock, ExprIf, ExprLit, ExprMethodCall, ExprParen, ImplItemFn, Item,
    ItemFn, Lit, Pat, ReturnType, Signature, Stmt, Token, TraitItemFn, Type, UnOp, parse_quote,
};

/// One mutant.
pub(crate) struct Mutant {
    pub(crate) id: u32,
    pub(crate) place: String,
    pub(crate) change: String,
}

/// Plants the mutants of all files, with ids that do not depend on which of them are left out.
pub(crate) struct Planter<'a> {
    file: String,
    function: String,
    next: u32,
    left_out: &'a BTreeSet<u32>,
    planted: Vec<Mutant>,
}

impl<'a> Planter<'a> {
    /// Numbers mutants from 1, and leaves out those that do not compile.
    pub(crate) fn new(left_out: &'a BTreeSet<u32>) -> Self {
        Self { file: String::new(), function: String::new(), next: 1, left_out, planted: Vec::new() }
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
        let id = self.next;
        self.next += 1;
        if self.left_out.contains(&id) {
            return None;
        }
        let place = format!("{}:{} {}", self.file, at.start().line, self.function);
        self.planted.push(Mutant { id, place, change: change() });
        Some(id)
    }

    /// Wraps an expression: with the mutant on, it is `alternative`.
    fn wrap(&mut self, expr: &mut Expr, at: Span, alternative: &Expr, change: String) {
        if let Some(id) = self.id(at, || change) {
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
        visit_mut::visit_block_mut(self, block);
        for value in results(&signature.output) {
            let change = format!("returns {}", brief(&value));
            let is_same = matches!(&block.stmts[..], [Stmt::Expr(only, None)] if brief(only) == brief(&value));
            if block.stmts.is_empty() || is_same {
                continue;
            }
            if let Some(id) = self.id(signature.span(), || change) {
                block.stmts.insert(0, parse_quote!(if crate::mutant::on(#id) { return #value; }));
            }
        }
        self.function = before;
    }
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

/// The other operators that a mutant uses in the place of `op`.
fn others(op: &BinOp) -> Vec<BinOp> {
    match op {
        BinOp::Lt(_) => vec![parse_quote!(<=), parse_quote!(>)],
        BinOp::Le(_) => vec![parse_quote!(<), parse_quote!(>)],
        BinOp::Gt(_) => vec![parse_quote!(>=), parse_quote!(<)],
        BinOp::Ge(_) => vec![parse_quote!(>), parse_quote!(<)],
        BinOp::Eq(_) => vec![parse_quote!(!=)],
        BinOp::Ne(_) => vec![parse_quote!(==)],
        BinOp::And(_) => vec![parse_quote!(||)],
        BinOp::Or(_) => vec![parse_quote!(&&)],
        BinOp::Add(_) => vec![parse_quote!(-)],
        BinOp::Sub(_) | BinOp::Mul(_) => vec![parse_quote!(+)],
        BinOp::Div(_) => vec![parse_quote!(*)],
        BinOp::Rem(_) => vec![parse_quote!(/)],
        BinOp::BitAnd(_) => vec![parse_quote!(|)],
        BinOp::BitOr(_) => vec![parse_quote!(&)],
        BinOp::Shl(_) => vec![parse_quote!(>>)],
        BinOp::Shr(_) => vec![parse_quote!(<<)],
        BinOp::AddAssign(_) => vec![parse_quote!(-=)],
        BinOp::SubAssign(_) => vec![parse_quote!(+=)],
        BinOp::BitOrAssign(_) => vec![parse_quote!(&=)],
        _ => Vec::new(),
    }
}

/// The other method that a mutant calls in the place of this one.
fn other_method(name: &str) -> Option<&'static str> {
    Some(match name {
        "min" => "max",
        "max" => "min",
        "is_some" => "is_none",
        "is_none" => "is_some",
        "first" => "last",
        "last" => "first",
        "any" => "all",
        "all" => "any",
        "front" => "back",
        "back" => "front",
        "pop_front" => "pop_back",
        "first_key_value" => "last_key_value",
        "last_key_value" => "first_key_value",
        "pop_first" => "pop_last",
        "saturating_sub" => "saturating_add",
        "saturating_add" => "saturating_sub",
        _ => return None,
    })
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
                if !is_for_tests(attrs) && sig.constness.is_none() {
                    self.function(&sig.clone(), block);
                }
            }
            Item::Impl(implementation) => {
                let of = implementation.trait_.as_ref().map(|(_, path, _)| path.to_token_stream().to_string());
                // What errors say, and how values are printed, is not the state machine's.
                if !of.is_some_and(|of| of.contains("Debug") || of.contains("Display")) {
                    visit_mut::visit_item_impl_mut(self, implementation);
                }
            }
            _ => visit_mut::visit_item_mut(self, item),
        }
    }

    fn visit_impl_item_fn_mut(&mut self, ImplItemFn { attrs, sig, block, .. }: &mut ImplItemFn) {
        if !is_for_tests(attrs) && sig.constness.is_none() {
            self.function(&sig.clone(), block);
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
        self.visit_expr_mut(&mut arm.body);
        if let Some((_, guard)) = &mut arm.guard {
            let at = guard.span();
            if !has_let(guard) {
                self.visit_expr_mut(guard);
                self.negate(guard, at, "not the guard");
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
        match expr {
            Expr::Binary(binary) if has_let(&Expr::Binary(binary.clone())) => self.visit_chain(expr),
            Expr::Binary(ExprBinary { left, op, right, .. }) => {
                let (plain_left, plain_right, of) = (left.clone(), right.clone(), *op);
                let is_assignment = matches!(op, BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::BitOrAssign(_));
                if !is_assignment {
                    self.visit_expr_mut(left);
                }
                self.visit_expr_mut(right);
                for other in others(&of) {
                    let alternative = binary(Expr::clone(&plain_left), other, Expr::clone(&plain_right));
                    let change = format!("{} for {} in {}", brief(&other), brief(&of), brief(&alternative));
                    self.wrap(expr, at, &alternative, change);
                }
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                let plain = unary.expr.clone();
                self.visit_expr_mut(&mut unary.expr);
                let change = format!("{} without !", brief(&plain));
                self.wrap(expr, at, &plain, change);
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
    }
}

impl Planter<'_> {
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
