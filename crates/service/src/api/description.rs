//! Descriptions (OpenAPI) of both interfaces, and the routes that they describe.
//!
//! A description follows from the routes: each handler has its part in `#[utoipa::path]`. It is made when the tests
//! run, and kept in a file beside the routes, which a test compares. So the program has the text, and not the code that
//! makes it: half a megabyte. `STERNA_GOLDEN=write cargo test -p sterna-service descriptions` writes the files anew.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

#[cfg(not(test))]
pub(in crate::api) use plain::{Routes, routes};
#[cfg(test)]
pub(in crate::api) use utoipa_axum::routes;

/// Routes of an interface, with their description.
#[cfg(test)]
pub(in crate::api) type Routes = utoipa_axum::router::OpenApiRouter<super::app::App>;

/// Routes without their description, by the same calls as those of `utoipa_axum`.
#[cfg(not(test))]
mod plain {
    use axum::Router;
    use axum::handler::Handler;
    use axum::routing::{MethodFilter, MethodRouter};
    use utoipa::openapi::HttpMethod;

    use crate::api::app::App;

    /// Routes of an interface.
    #[derive(Default)]
    pub(in crate::api) struct Routes(Router<App>);

    impl Routes {
        /// Adds a path.
        pub(in crate::api) fn routes(self, route: Route) -> Self {
            Self(self.0.route(&route.path, route.handlers))
        }

        /// Adds the routes of a module.
        pub(in crate::api) fn merge(self, others: Self) -> Self {
            Self(self.0.merge(others.0))
        }

        /// Sets the handler of all other paths.
        pub(in crate::api) fn fallback<H: Handler<T, App>, T: 'static>(self, handler: H) -> Self {
            Self(self.0.fallback(handler))
        }
    }

    impl From<Routes> for Router<App> {
        fn from(routes: Routes) -> Self {
            routes.0
        }
    }

    /// Handlers of a path, by method.
    #[derive(Default)]
    pub(in crate::api) struct Route {
        path: String,
        handlers: MethodRouter<App>,
    }

    impl Route {
        /// Adds a handler with the path and the methods of its description.
        pub(in crate::api) fn add<P: utoipa::Path, H: Handler<T, App>, T: 'static>(mut self, handler: H) -> Self {
            self.path = P::path();
            let on = |handlers: MethodRouter<App>, method| handlers.on(filter_of(&method), handler.clone());
            self.handlers = P::methods().into_iter().fold(self.handlers, on);
            self
        }
    }

    fn filter_of(method: &HttpMethod) -> MethodFilter {
        match method {
            HttpMethod::Get => MethodFilter::GET,
            HttpMethod::Put => MethodFilter::PUT,
            HttpMethod::Post => MethodFilter::POST,
            HttpMethod::Delete => MethodFilter::DELETE,
            HttpMethod::Options => MethodFilter::OPTIONS,
            HttpMethod::Head => MethodFilter::HEAD,
            HttpMethod::Patch => MethodFilter::PATCH,
            HttpMethod::Trace => MethodFilter::TRACE,
        }
    }

    /// Makes a route of handlers of one path. `utoipa` has the description of `list` in the type `__path_list`.
    macro_rules! routes {
        (@add $route:expr, $handler:ident) => {
            pastey::paste! { $route.add::<[<__path_ $handler>], _, _>($handler) }
        };
        (@add $route:expr, $module:ident :: $handler:ident) => {
            pastey::paste! { $route.add::<$module::[<__path_ $handler>], _, _>($module::$handler) }
        };
        ($($($name:ident)::+),+ $(,)?) => {{
            let route = $crate::api::description::Route::default();
            $(let route = $crate::api::description::routes!(@add route, $($name)::+);)+
            route
        }};
    }
    pub(in crate::api) use routes;
}

#[cfg(not(test))]
pub(in crate::api) use plain::Route;

/// Credentials of a caller.
#[cfg(test)]
pub(super) struct Credentials;

#[cfg(test)]
impl utoipa::Modify for Credentials {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Map, Value};
    use utoipa::openapi::OpenApi;

    use crate::api::{fts3, native};

    /// Returns a description as text: one line for each path and each schema, in the order of their names.
    fn text(description: &OpenApi) -> String {
        let description = serde_json::to_value(description).unwrap();
        let lines = |map: &Map<String, Value>| {
            let lines: Vec<String> =
                map.iter().map(|(name, value)| format!("{}: {value}", Value::from(name.as_str()))).collect();
            format!("{{\n{}\n}}", lines.join(",\n"))
        };
        let parts: Vec<String> = description
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("paths", Value::Object(paths)) => format!("\"paths\": {}", lines(paths)),
                ("components", Value::Object(components)) => {
                    let parts: Vec<String> = components
                        .iter()
                        .filter_map(|(kind, named)| Some(format!("\"{kind}\": {}", lines(named.as_object()?))))
                        .collect();
                    format!("\"components\": {{\n{}\n}}", parts.join(",\n"))
                }
                _ => format!("\"{name}\": {value}"),
            })
            .collect();
        format!("{{\n{}\n}}\n", parts.join(",\n"))
    }

    #[test]
    fn descriptions_follow_from_the_routes() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
        for (file, description) in
            [("fts3/openapi.json", fts3::described()), ("native/openapi.json", native::described())]
        {
            let (file, expected) = (directory.join(file), text(&description));
            let read: Value = serde_json::from_str(&expected).unwrap();
            assert_eq!(read, serde_json::to_value(&description).unwrap(), "the text has all");
            if std::env::var("STERNA_GOLDEN").is_ok_and(|what| what == "write") {
                std::fs::write(&file, &expected).unwrap();
            }
            let there = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(there == expected, "{} is old: STERNA_GOLDEN=write writes it", file.display());
        }
    }
}
