//! Operators and methods, and what mutants put in their place.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{BinOp, Expr, parse_quote};

/// The other operators that a mutant uses in the place of `op`.
pub(crate) fn others(op: &BinOp) -> Vec<BinOp> {
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
pub(crate) fn other_method(name: &str) -> Option<&'static str> {
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

/// The operators of an expression that no parentheses separate.
pub(crate) fn of(expr: &Expr) -> Vec<BinOp> {
    let Expr::Binary(binary) = expr else { return Vec::new() };
    let (left, right) = (of(&binary.left), of(&binary.right));
    left.into_iter().chain([binary.op]).chain(right).collect()
}

/// The expression with another operator at a place in its source, if operators then bind otherwise: `a && b && c`
/// becomes `a || b && c`, which is not `(a || b) && c`.
pub(crate) fn regrouped(expr: &Expr, at: Span, replacement: &str) -> Option<Expr> {
    let source = with_tokens(expr.to_token_stream(), at, &syn::parse_str(replacement).ok()?);
    let regrouped = syn::parse2(source).ok()?;
    let mut kept = expr.clone();
    set_operator(&mut kept, at, syn::parse_str(replacement).ok()?);
    (grouped(&regrouped) != grouped(&kept)).then_some(regrouped)
}

fn set_operator(expr: &mut Expr, at: Span, other: BinOp) {
    if let Expr::Binary(binary) = expr {
        if binary.op.span().start() == at.start() {
            binary.op = other;
        }
        set_operator(&mut binary.left, at, other);
        set_operator(&mut binary.right, at, other);
    }
}

/// How the operators of an expression bind.
fn grouped(expr: &Expr) -> String {
    match expr {
        Expr::Binary(binary) => {
            format!("({} {} {})", grouped(&binary.left), binary.op.to_token_stream(), grouped(&binary.right))
        }
        Expr::Cast(cast) => format!("({} as {})", grouped(&cast.expr), cast.ty.to_token_stream()),
        Expr::Unary(unary) => format!("({} {})", unary.op.to_token_stream(), grouped(&unary.expr)),
        _ => expr.to_token_stream().to_string(),
    }
}

/// The source of an expression with other tokens in the place of an operator.
fn with_tokens(source: TokenStream, at: Span, other: &TokenStream) -> TokenStream {
    let (start, end) = (at.start(), at.end());
    let replaced = source.into_iter().map(|token| {
        let span = token.span();
        if span.start() == start {
            other.clone()
        } else if start < span.start() && span.start() < end {
            TokenStream::new()
        } else {
            TokenStream::from(token)
        }
    });
    replaced.collect()
}
