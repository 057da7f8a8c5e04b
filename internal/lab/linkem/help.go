package linkem

import (
	"strings"
)

var ShapeHelp = "a profile (" + strings.Join(ProfileNames(), ", ") + `), or as in "rtt=60ms,loss=1%,rate=20mbit"`
