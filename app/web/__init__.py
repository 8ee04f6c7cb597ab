"""HTTP in, HTML and JSON out: routes, forms, rendering, security headers and error pages."""
