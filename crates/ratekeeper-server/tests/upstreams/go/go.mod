module ratekeeper/upstream

go 1.26.0
