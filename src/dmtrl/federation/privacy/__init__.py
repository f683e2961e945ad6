"""What leaves a site with noise, so that single rows are protected in numbers; and sums that hide each site."""
