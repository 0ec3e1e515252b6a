//! Parts that the descriptions (OpenAPI) of both interfaces share.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

/// Credentials of a caller.
pub(super) struct Credentials;

impl utoipa::Modify for Credentials {
    fn modify(&self, description: &mut OpenApi) {
        let components = description.components.get_or_insert_default();
        let certificate = SecurityScheme::MutualTls {
            description: Some("Client certificate, or a proxy of one (RFC 3820)".to_owned()),
            deprecated: None,
            extensions: None,
        };
        let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
        components.add_security_scheme("certificate", certificate);
        components.add_security_scheme("token", SecurityScheme::Http(token));
    }
}

/// Returns the failures that every request can have, with bodies of a schema.
pub(super) fn failures(schema: &str) -> BTreeMap<String, RefOr<Response>> {
    let failures = [
        (StatusCode::BAD_REQUEST, "The request is not understood"),
        (StatusCode::UNAUTHORIZED, "The credentials are refused"),
        (StatusCode::FORBIDDEN, "The caller may not do that"),
        (StatusCode::NOT_FOUND, "There is no such thing, or the caller may not see it"),
        (StatusCode::METHOD_NOT_ALLOWED, "The method is not allowed"),
        (StatusCode::PAYLOAD_TOO_LARGE, "The request is too large"),
        (StatusCode::SERVICE_UNAVAILABLE, "The service cannot do it now"),
    ];
    let response = |(status, text): (StatusCode, &str)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
        let response = ResponseBuilder::new().description(text).content("application/json", content).build();
        (status.as_u16().to_string(), RefOr::T(response))
    };
    failures.into_iter().map(response).collect()
}
