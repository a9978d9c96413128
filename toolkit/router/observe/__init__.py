"""What operators see of the router: log lines, metrics, the state as JSON and the page that shows it."""
