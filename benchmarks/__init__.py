"""One script per question; results as JSON beside the machine they ran on."""
