"""From a privacy budget to a release: budget, intensity, distortion (Algorithm 2), release."""
