module github.com/berth-dev/berth/codepages

go 1.26.8
