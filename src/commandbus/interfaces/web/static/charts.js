// Charts: values under the pointer or the arrow keys, in all charts at once; dragging chooses a range.
"use strict";
